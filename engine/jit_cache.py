"""The cache of compiled kernels: a folder named by the hash of every source that they may depend on.

Numba's cache checks only the file of the cached function. After an edit of `engine/board/movegen.py` (or a `git pull`) the
cached `pipeline/pgn/replay.py` would silently run the old move generator. Machine code also contains constants of modules
without kernels, such as `engine/evaluation/piece_squares.py`. An edit of a module that no kernel imports recompiles nothing.
Numba's index in the folder covers its version and the processor.
"""

import hashlib
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

VARIABLE = "NUMBA_CACHE_DIR"
OURS = "FIANCHETTO_KERNELS"
"""Holds the value of VARIABLE that this module set, so that a subprocess does not take it for the user's."""

ROOMS = ("engine", "model", "pipeline")

_COMPILES = re.compile(rb"^[ \t]*(?:from|import)[ \t]+numba(?:\.extending)?[ \t\n]", re.MULTILINE)
_OURS = "|".join(ROOMS)
_FROM = rf"from[ \t]+((?:{_OURS})[\w.]*)[ \t]+import[ \t]*(\([^)]*\)|[^\n]*)"
_IMPORT = rf"import[ \t]+([^\n]*\b(?:{_OURS})\b[^\n]*)"
_IMPORTS = re.compile(rf"^[ \t]*(?:{_FROM}|{_IMPORT})".encode(), re.MULTILINE)


def kernel_sources(root: Path) -> dict[str, bytes]:
    """Return the modules with kernels and all of this project that they import, directly or not: path to content.

    Import statements are found by a regular expression, in a hundredth of the time of parsing, since this runs at every start.
    A false match only adds a module.
    """
    every: dict[str, bytes] = {}
    for path in (path for room in ROOMS for path in _python_files(f"{root}/{room}")):
        with open(path, "rb", buffering=0) as file:  # noqa: PTH123 - Path's way takes twice the time, at every start
            every[path[len(f"{root}/") :]] = file.read()
    found = {name for name, text in every.items() if b"numba" in text and _COMPILES.search(text)}
    ahead = list(found)
    while ahead:
        new = _imported(every[ahead.pop()], every) - found
        found |= new
        ahead += new
    return {name: every[name] for name in sorted(found)}


def _python_files(folder: str) -> Iterator[str]:
    """Yield the paths of a folder's Python files, of its subfolders' too."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.endswith(".py"):
                yield entry.path
            elif entry.name != "__pycache__" and entry.is_dir():
                yield from _python_files(entry.path)


def _imported(text: bytes, every: dict[str, bytes]) -> set[str]:
    """Return the paths of this project's modules that a source imports, and of their packages."""
    named: set[bytes] = set()
    for module, names, modules in _IMPORTS.findall(text):
        named |= {module + b"." + name for name in re.findall(rb"\w+", names)} if module else set()
        named |= set(re.findall(rb"[\w.]+", modules))
    paths = set()
    for dotted in named:
        parts = dotted.decode().split(".")
        for end in range(1, len(parts) + 1):
            place = "/".join(parts[:end])
            paths |= {f"{place}.py", f"{place}/__init__.py"}
    return paths & every.keys()


def sources_hash(root: Path) -> str:
    """Return the hash of all sources that kernels may depend on, 16 hex digits."""
    total = hashlib.sha256()
    for name, text in kernel_sources(root).items():
        total.update(name.encode() + b"\0" + len(text).to_bytes(8, "little") + text)
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
