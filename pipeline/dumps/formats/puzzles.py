"""Lichess's puzzles (database.lichess.org/#puzzles): `PuzzleId,FEN,Moves,Rating,...,Themes,...`, a line each.

The first move is the opponent's; the position after it is the puzzle, and the solver's moves are the labels. Rating and
themes go to `puzzle_rating` and `puzzle_themes` of `games.parquet`, the id to its `site`.
"""

import csv
from collections.abc import Iterator, Sequence

from pipeline.dumps.formats.text import UCI, Readable, broken, clean, gathered, lines, position
from pipeline.errors import DumpError

NEEDED = ("PuzzleId", "FEN", "Moves")
EVENT = "Lichess puzzle"


def recognise(first_line: str) -> bool:
    """Tell the header of the puzzles."""
    return first_line.lstrip("\ufeff").lower().startswith("puzzleid,")


def pgn(name: str, stream: Readable) -> Iterator[bytes]:
    """Turn the stream of a puzzle CSV into PGN text; raises DumpError when a column that is needed is missing."""
    return gathered(_games(name, stream))


def _games(name: str, stream: Readable) -> Iterator[str]:
    rows = lines(stream)
    _, header = next(rows, (1, ""))
    columns = next(csv.reader([header or ""]), [])
    if missing := [column for column in NEEDED if column not in columns]:
        raise DumpError(f"{name} begins like Lichess's puzzles but has no column {', '.join(missing)}")
    for number, line in rows:
        if line is None or line.strip():
            yield _game(number, line, columns)


def _game(number: int, line: str | None, columns: Sequence[str]) -> str:
    site = f"line-{number}"
    fields = fields_of(line)
    if len(fields) != len(columns):
        return broken(event=EVENT, site=site)
    row = dict(zip(columns, fields, strict=True))
    moves = row["Moves"].split()
    if not all(UCI.fullmatch(move) for move in moves):
        return broken(event=EVENT, site=site)
    rating = row.get("Rating", "")
    tags = {
        "PuzzleRating": rating if rating.isascii() and rating.isdigit() else "",
        "PuzzleThemes": row.get("Themes", ""),
    }
    puzzle = clean(row["PuzzleId"]).replace("/", "-")
    return position(row["FEN"], " ".join(moves), event=EVENT, site=puzzle or site, parity=1, tags=tags)


def fields_of(line: str | None) -> list[str]:
    """Split a line of CSV; a broken one has no fields."""
    try:
        return [] if line is None else next(csv.reader([line], strict=True), [])
    except csv.Error:
        return []
