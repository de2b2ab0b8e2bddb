"""Keep compiled kernels in a folder named by the hash of their source files.

Numba's cache checks only the file of the cached function. After an edit of movegen.py (or a `git
pull`), a cached kernel of replay.py would silently run the old move generator. Compiled code also
contains constants from modules without kernels. Numba itself checks its version and the processor.
"""

import hashlib
import os
import stat
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

NUMBA_VARIABLE = "NUMBA_CACHE_DIR"
OWN_VARIABLE = "FIANCHETTO_KERNELS"
"""Holds the value that this module gave NUMBA_VARIABLE, so that a subprocess can tell it from a
value set by the user."""

SOURCES = (
    *("engine/*.py", "engine/board/*.py", "engine/encoding/*.py", "engine/evaluation/*.py"),
    *("engine/search/*.py", "pipeline/pgn/*.py", "pipeline/dataset/files/kernels.py"),
)
"""Modules with kernels, and the modules of this project that they import."""


def sources_hash(root: Path) -> str:
    """Return the hash of all source files in SOURCES, 16 hex digits."""
    total = hashlib.sha256()
    for path in sorted(path for pattern in SOURCES for path in root.glob(pattern)):
        text = path.read_bytes()
        total.update(f"{path.relative_to(root).as_posix()}\0{len(text)}\0".encode() + text)
    return total.hexdigest()[:16]


def key_cache_by_sources() -> None:
    """Set Numba's cache folder by the hash of the sources, unless the user has set a folder."""
    if os.environ.get(NUMBA_VARIABLE) != os.environ.get(OWN_VARIABLE):
        return
    provide_caches()
    here = Path(__file__).parent
    folder = here / "__pycache__"
    if not os.access(folder if folder.is_dir() else here, os.W_OK):
        folder = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "fianchetto"
    os.environ[NUMBA_VARIABLE] = os.environ[OWN_VARIABLE] = str(
        folder / f"kernels-{sources_hash(here.parent)}"
    )
    if "numba" in sys.modules:  # it has already read the environment
        sys.modules["numba"].config.CACHE_DIR = os.environ[NUMBA_VARIABLE]


def provide_caches() -> None:
    """Move the caches of libraries to the temporary folder if the user's is not writable.

    matplotlib and Numba fail without a writable cache. Containers often run as a user without a
    home folder.
    """
    try:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
        folder.mkdir(parents=True, exist_ok=True)
        is_writable = os.access(folder, os.W_OK | os.X_OK)
    except (OSError, RuntimeError):  # a user without a home
        is_writable = False
    if not is_writable:
        with suppress(OSError):  # there may be no temporary folder either
            os.environ["XDG_CACHE_HOME"] = cache = _temporary_cache()
            os.environ.setdefault("MPLCONFIGDIR", f"{cache}/matplotlib")


def _temporary_cache() -> str:
    """Return a folder that only this user can write to, because caches contain code."""
    folder = Path(tempfile.gettempdir()) / f"fianchetto-cache-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    about = folder.lstat()
    is_ours = stat.S_ISDIR(about.st_mode) and about.st_uid == os.getuid()
    if is_ours and not about.st_mode & 0o022:
        return str(folder)
    return tempfile.mkdtemp(prefix="fianchetto-cache-")


def are_compiled(module: str) -> bool:
    """Return whether kernels of `module` (its name without packages) are cached."""
    folder = os.environ.get(NUMBA_VARIABLE)
    return folder is not None and any(Path(folder).glob(f"*/{module}.*.nbi"))
