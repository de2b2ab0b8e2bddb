"""Positions with their best move as CSV: a header such as `fen,best` or `position,bestmove`, and a line each.

The move is UCI or SAN; where a field holds several, as in `['e2e4', 'd2d4']`, the first is the label.
"""

import csv
import re
from collections.abc import Iterator

from pipeline.dumps.formats.puzzles import fields_of
from pipeline.dumps.formats.text import UCI, Readable, broken, gathered, lines, position
from pipeline.errors import DumpError

FEN_NAMES = ("fen", "position", "fen_original", "epd")
BEST_NAMES = ("best", "bestmove", "best_move", "best_uci", "bm", "move", "uci", "san")
EVENT = "best move"
SAN = re.compile(r"O-O(?:-O)?|[NBRQK]?[a-h]?[1-8]?x?[a-h][1-8](?:=?[NBRQnbrq])?")


def recognise(first_line: str) -> bool:
    """Tell a header that names a position."""
    names = _names(first_line)
    return len(names) > 1 and any(name in names for name in FEN_NAMES)


def pgn(name: str, stream: Readable) -> Iterator[bytes]:
    """Turn the stream of such a CSV into PGN text; raises DumpError when no column is the move's."""
    return gathered(_games(name, stream))


def _names(header: str) -> list[str]:
    fields = next(csv.reader([header.lstrip("\ufeff")]), [])
    return [field.strip().lower() for field in fields]


def _games(name: str, stream: Readable) -> Iterator[str]:
    rows = lines(stream)
    _, header = next(rows, (1, ""))
    names = _names(header or "")
    fen = next((names.index(column) for column in FEN_NAMES if column in names), -1)
    best = next((names.index(column) for column in BEST_NAMES if column in names), -1)
    if min(fen, best) < 0:
        raise DumpError(
            f"{name} is a table of {', '.join(names)[:200]}: a position is fen or position, and its move one of "
            f"{', '.join(BEST_NAMES)}"
        )
    for number, line in rows:
        if line is None or line.strip():
            fields = fields_of(line)
            if len(fields) != len(names):
                yield broken(event=EVENT, site=f"line-{number}")
            else:
                yield position(fields[fen], first_move(fields[best]), event=EVENT, site=f"line-{number}")


def first_move(field: str) -> str:
    """Return the first move that stands in a field, "" if there is none."""
    found = UCI.search(field) or SAN.search(field)
    return found[0] if found else ""
