"""Keep compiled kernels in a folder named by the hash of their source files.

Numba's cache checks only the file that defines the cached function. After an edit of movegen.py (or
a `git pull`), a cached kernel of replay.py would silently run the old move generator. Compiled code
also contains constants of modules without kernels, so their sources are hashed too. Numba itself
checks its version and the processor.
"""

import hashlib
import os
import stat
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

NUMBA_CACHE_VARIABLE = "NUMBA_CACHE_DIR"
OWN_CACHE_VARIABLE = "FIANCHETTO_KERNELS"
"""Environment variable with the value that this module gave to NUMBA_CACHE_VARIABLE, so that a
subprocess can tell it from a value that the user set."""

KERNEL_SOURCES = (
    *("engine/*.py", "engine/board/*.py", "engine/encoding/*.py", "engine/evaluation/*.py"),
    *("engine/search/*.py", "pipeline/pgn/*.py", "pipeline/dataset/files/kernels.py"),
)
"""Patterns of the modules with kernels, and of the project's modules that they import."""


def hash_kernel_sources(root: Path) -> str:
    """Return the hash of the files of KERNEL_SOURCES below `root`, 16 hex digits."""
    digest = hashlib.sha256()
    for path in sorted(path for pattern in KERNEL_SOURCES for path in root.glob(pattern)):
        text = path.read_bytes()
        digest.update(f"{path.relative_to(root).as_posix()}\0{len(text)}\0".encode() + text)
    return digest.hexdigest()[:16]


def key_cache_by_sources() -> None:
    """Set Numba's cache folder to one named by the sources, unless the user has set a folder."""
    if os.environ.get(NUMBA_CACHE_VARIABLE) != os.environ.get(OWN_CACHE_VARIABLE):
        return
    move_unwritable_caches()
    here = Path(__file__).parent
    folder = here / "__pycache__"
    if not os.access(folder if folder.is_dir() else here, os.W_OK):
        folder = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "fianchetto"
    os.environ[NUMBA_CACHE_VARIABLE] = os.environ[OWN_CACHE_VARIABLE] = str(
        folder / f"kernels-{hash_kernel_sources(here.parent)}"
    )
    if "numba" in sys.modules:  # Numba has already read the environment
        sys.modules["numba"].config.CACHE_DIR = os.environ[NUMBA_CACHE_VARIABLE]


def move_unwritable_caches() -> None:
    """Move the libraries' caches to a temporary folder if the user's cache folder is not writable.

    Without a writable cache, matplotlib and Numba fail. Containers often run as a user without a
    home folder.
    """
    try:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
        folder.mkdir(parents=True, exist_ok=True)
        is_writable = os.access(folder, os.W_OK | os.X_OK)
    except (OSError, RuntimeError):  # RuntimeError: the user has no home folder
        is_writable = False
    if not is_writable:
        with suppress(OSError):  # even the temporary folder may be read-only
            os.environ["XDG_CACHE_HOME"] = cache = _make_temporary_cache()
            os.environ.setdefault("MPLCONFIGDIR", f"{cache}/matplotlib")


def _make_temporary_cache() -> str:
    """Return a folder that only this user can write to, because caches contain code."""
    folder = Path(tempfile.gettempdir()) / f"fianchetto-cache-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.lstat()
    is_ours = stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()
    is_writable_by_others = status.st_mode & 0o022
    if is_ours and not is_writable_by_others:
        return str(folder)
    return tempfile.mkdtemp(prefix="fianchetto-cache-")


def has_compiled_kernels(module: str) -> bool:
    """Return whether kernels of a module, named without its packages (`puct`), are cached."""
    folder = os.environ.get(NUMBA_CACHE_VARIABLE)
    return folder is not None and any(Path(folder).glob(f"*/{module}.*.nbi"))
