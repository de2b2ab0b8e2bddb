"""Paths of the bundled checkpoint and sample."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
"""Parent folder of the packages: the repository, or site-packages."""


def bundled_path(name: str) -> Path:
    """Return the path of a folder in `datasets/`, or of its copy in an installed wheel."""
    tree = ROOT / "datasets" / name
    return tree if tree.is_dir() else ROOT / "fianchetto" / name


EMBEDDED = bundled_path("embedded")
"""The checkpoint that plays by default."""
SAMPLE_DUMP = bundled_path("sample") / "fianchetto_sample_2000.pgn.zst"
"""The sample dump."""
MIN_SCRATCH_POSITIONS = 7_000_000
"""Minimum number of positions (about 100,000 games) for training from scratch. With fewer, training
from EMBEDDED gives a better network (docs/guides/own_games.md)."""


def relative_to_cwd(folder: Path) -> Path:
    """Return a folder relative to the current directory if it is inside it."""
    here = Path.cwd()
    return folder.relative_to(here) if folder.is_relative_to(here) else folder
