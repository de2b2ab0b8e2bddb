"""Where compiled kernels are kept: a folder named by the hash of every source that holds one.

Numba's own cache watches the file of the cached function alone, so after an edit to `engine/legal.py` (or a `git pull`)
the cached `pipeline/pgn.py` would go on running the old move generator, silently. A folder a state of the sources
cannot be stale.
"""

import hashlib
import os
import sys
from pathlib import Path

VARIABLE = "NUMBA_CACHE_DIR"
OURS = "FIANCHETTO_KERNELS"
"""Says which value of VARIABLE this module set, so that a child with newer sources does not take it for the user's."""

ROOMS = ("engine", "pipeline")


def sources_hash(root: Path) -> str:
    """Hash the modules of both rooms that compile something, 16 hex digits."""
    total = hashlib.sha256()
    for room in ROOMS:
        for path in sorted((root / room).rglob("*.py")):
            text = path.read_bytes()
            if b"@njit" in text or b"@intrinsic" in text:
                total.update(path.relative_to(root).as_posix().encode() + text)
    return total.hexdigest()[:16]


def key_cache_by_sources() -> None:
    """Point Numba's cache at a folder of these sources; a folder that the user named is left alone."""
    if os.environ.get(VARIABLE) != os.environ.get(OURS):
        return
    here = Path(__file__).parent
    folder = here / "__pycache__"
    if not os.access(folder if folder.is_dir() else here, os.W_OK):
        folder = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "fianchetto"
    os.environ[VARIABLE] = os.environ[OURS] = str(folder / f"kernels-{sources_hash(here.parent)}")
    if "numba" in sys.modules:  # it has read its environment already
        sys.modules["numba"].config.CACHE_DIR = os.environ[VARIABLE]


def are_compiled(module: str) -> bool:
    """Tell whether kernels of a module are kept for these sources; `module` is its name without its packages."""
    folder = os.environ.get(VARIABLE)
    return folder is not None and any(Path(folder).glob(f"*/{module}.*.nbi"))
