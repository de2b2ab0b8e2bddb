"""Where the checkpoint and the sample that come with the project lie."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
"""The folder of our packages: the repository, or site-packages."""


def shipped(name: str) -> Path:
    """Return the folder `name` of the repository's `datasets`, or of the package `fianchetto` where a wheel is installed."""
    tree = ROOT / "datasets" / name
    return tree if tree.is_dir() else ROOT / "fianchetto" / name


EMBEDDED = shipped("embedded")
"""A checkpoint: the network that plays by default."""
SAMPLE = shipped("sample") / "fianchetto_sample_2000.pgn.zst"
"""The sample dump."""
