"""Paths of the bundled checkpoint and sample."""

from pathlib import Path

PACKAGES = Path(__file__).resolve().parents[2]
"""Folder that contains the packages: the repository, or site-packages."""


def bundled_path(name: str) -> Path:
    """Return the path of a folder in `datasets/`, or of its copy in an installed wheel."""
    in_repository = PACKAGES / "datasets" / name
    return in_repository if in_repository.is_dir() else PACKAGES / "fianchetto" / name


EMBEDDED_CHECKPOINT = bundled_path("embedded")
"""Folder of the embedded checkpoint, the network that plays by default."""
SAMPLE_DUMP = bundled_path("sample") / "fianchetto_sample_2000.pgn.zst"
"""File with the 2,000 games of the sample."""
MIN_SCRATCH_POSITIONS = 7_000_000
"""Number of positions (about 100,000 games) below which training from the embedded checkpoint gives
a better network than training from scratch (docs/guides/own_games.md)."""


def relative_to_cwd(folder: Path) -> Path:
    """Return a folder's path, relative to the current directory if it is inside that directory."""
    current = Path.cwd()
    return folder.relative_to(current) if folder.is_relative_to(current) else folder
