"""What a file is, by what it begins with and never by its name."""

from collections.abc import Callable, Iterator

from pipeline.dumps.formats import best_moves, epd, puzzles
from pipeline.dumps.formats.text import Readable

Convert = Callable[[str, Readable], Iterator[bytes]]
"""(name of the file, its decompressed bytes) to PGN text."""

HEAD = 1 << 20
"""Raw bytes that are looked at: a block of bz2 may take 900 kB, and nothing can be told before its end."""
FIRST = 1 << 16
"""Decompressed bytes that are looked at."""

INPUTS: tuple[tuple[str, Callable[[str], bool], Convert], ...] = (
    ("Lichess puzzles (CSV)", puzzles.recognise, puzzles.pgn),
    ("best moves (CSV)", best_moves.recognise, best_moves.pgn),
    ("EPD", epd.recognise, epd.pgn),
)
"""What an input is called in the manifest, how its first line is told, and what turns it into PGN."""


def recognise(first: bytes) -> tuple[str, Convert] | None:
    """Tell an input by its first bytes: its name and what turns it into PGN; None for PGN and what is not known."""
    line = next((line for line in first.decode("utf-8", "replace").splitlines() if line.strip()), "")
    return next(((name, convert) for name, matches, convert in INPUTS if matches(line)), None)
