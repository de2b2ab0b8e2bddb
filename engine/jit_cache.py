"""The cache of compiled kernels: a folder named by the hash of every source that they may depend on.

Numba's cache checks only the file of the cached function. After an edit of `engine/board/movegen.py` (or a `git pull`) the
cached `pipeline/pgn/replay.py` would silently run the old move generator. Machine code also contains constants of modules
without kernels, such as `engine/evaluation/piece_squares.py`. Numba's own index covers its version and the processor.
"""

import hashlib
import os
import sys
from pathlib import Path

VARIABLE = "NUMBA_CACHE_DIR"
OURS = "FIANCHETTO_KERNELS"
"""Holds the value of VARIABLE that this module set, so that a subprocess does not take it for the user's."""

SOURCES = (
    *("engine/*.py", "engine/board/*.py", "engine/encoding/*.py", "engine/evaluation/*.py", "engine/search/*.py"),
    *("pipeline/pgn/*.py", "pipeline/dataset/files/permute.py", "pipeline/dataset/files/plane_kernels.py"),
)
"""The modules with kernels, and all of this project that they import; an edit of another one recompiles nothing."""


def sources_hash(root: Path) -> str:
    """Return the hash of all sources that kernels may depend on, 16 hex digits."""
    total = hashlib.sha256()
    for path in sorted(path for pattern in SOURCES for path in root.glob(pattern)):
        text = path.read_bytes()
        total.update(f"{path.relative_to(root).as_posix()}\0{len(text)}\0".encode() + text)
    return total.hexdigest()[:16]


def key_cache_by_sources() -> None:
    """Point Numba's cache at the folder of these sources, unless the user has set another one."""
    if os.environ.get(VARIABLE) != os.environ.get(OURS):
        return
    here = Path(__file__).parent
    folder = here / "__pycache__"
    if not os.access(folder if folder.is_dir() else here, os.W_OK):
        try:
            folder = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "fianchetto"
        except RuntimeError:  # a user without a home
            return
    os.environ[VARIABLE] = os.environ[OURS] = str(folder / f"kernels-{sources_hash(here.parent)}")
    if "numba" in sys.modules:  # it has read its environment already
        sys.modules["numba"].config.CACHE_DIR = os.environ[VARIABLE]


def are_compiled(module: str) -> bool:
    """Return whether kernels of a module are cached for these sources; `module` is its name without its packages."""
    folder = os.environ.get(VARIABLE)
    return folder is not None and any(Path(folder).glob(f"*/{module}.*.nbi"))
