"""Provenance of a checkpoint: the commit of the code, and the reason for its arithmetic."""

import shutil
import subprocess
from functools import cache
from pathlib import Path

import torch


@cache
def commit() -> str | None:
    """Return the git commit of this code as `commit_of` does."""
    return commit_of(Path(__file__).resolve().parents[2])


def commit_of(root: Path) -> str | None:
    """Return a checkout's commit, with `-dirty` when tracked files were changed; None without a checkout or git."""
    git = shutil.which("git")
    if git is None or not (root / ".git").exists():
        return None

    def ask(*words: str) -> str:
        command = [git, "--no-optional-locks", "-C", str(root), *words]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()

    head = ask("rev-parse", "--verify", "--quiet", "HEAD")
    changed = ask("status", "--porcelain", "--untracked-files=no")
    return f"{head}-dirty" if head and changed else head or None


def dtype_name(dtype: torch.dtype, amp: str) -> str:
    """Return the name of the arithmetic and why it was chosen."""
    name = str(dtype).removeprefix("torch.")
    why = {"auto": "the device gains by bf16" if name == "bfloat16" else "the device gains nothing by bf16"}
    return f"{name} ({why.get(amp, 'as configured')})"
