"""Where a checkpoint comes from: the commit of the code, and why its arithmetic is what it is."""

import shutil
import subprocess
from functools import cache
from pathlib import Path

import torch


@cache
def commit() -> str | None:
    """Give the git commit of this code, None when it is no checkout or there is no git."""
    git = shutil.which("git")
    root = Path(__file__).resolve().parent.parent
    if git is None or not (root / ".git").exists():
        return None
    found = subprocess.run([git, "-C", str(root), "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    return found.stdout.strip() if found.returncode == 0 else None


def dtype_name(dtype: torch.dtype, amp: str) -> str:
    """Say which arithmetic was used and why."""
    name = "bfloat16" if dtype == torch.bfloat16 else "float32"
    why = {"auto": "the processor has bf16" if name == "bfloat16" else "the processor has no bf16"}
    return f"{name} ({why.get(amp, 'as configured')})"
