"""Code versions of assets: a hash of the rooms that decide what they hold, which Dagster compares with the last one's."""

import hashlib
from functools import cache
from pathlib import Path

from engine.encoding.planes import ENCODING_VERSION
from pipeline.dataset.files.columns import FORMAT_VERSION
from pipeline.ingest.rows_code import without_comments

ROOT = Path(__file__).resolve().parents[2]
"""The folder of the packages."""
CODE_VERSION = f"encoding {ENCODING_VERSION}, format {FORMAT_VERSION}"


def code_of(*rooms: str, root: Path = ROOT) -> str:
    """Return encoding and format versions, and a hash of the code of some rooms, folders or files below `root`.

    Comments, docstrings and blank lines do not count.
    """
    total = hashlib.sha256()
    for path in sorted(path for room in rooms for path in _sources(root / room)):
        total.update(f"{path.relative_to(root).as_posix()}\n{_hash(path)}\n".encode())
    return f"{CODE_VERSION}, code {total.hexdigest()[:16]}"


def _sources(room: Path) -> list[Path]:
    """Return the modules of a folder and those below it, or the one that a path names; FileNotFoundError if there is none."""
    found = [room] if room.is_file() else list(room.rglob("*.py"))
    if not found:
        raise FileNotFoundError(f"no code is in {room}")
    return found


@cache
def _hash(path: Path) -> str:
    return hashlib.sha256(without_comments(path.read_bytes()).encode()).hexdigest()
