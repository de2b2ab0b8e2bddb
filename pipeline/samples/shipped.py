"""Paths of the bundled checkpoint and sample."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
"""The folder of the packages: the repository, or site-packages."""


def shipped(name: str) -> Path:
    """Return a folder of `datasets/` in the repository, or its copy in an installed wheel."""
    tree = ROOT / "datasets" / name
    return tree if tree.is_dir() else ROOT / "fianchetto" / name


EMBEDDED = shipped("embedded")
"""The checkpoint that plays by default."""
SAMPLE = shipped("sample") / "fianchetto_sample_2000.pgn.zst"
"""The sample dump."""
SCRATCH_POSITIONS = 7_000_000
"""Train positions, about 100,000 games, from which on training from scratch does well. With fewer,
training from EMBEDDED gives a better network (docs/guides/own_games.md)."""


def from_here(folder: Path) -> Path:
    """Return a folder relative to the current one, if it lies in it."""
    here = Path.cwd()
    return folder.relative_to(here) if folder.is_relative_to(here) else folder
