"""Positions with their moves as text: Lichess's puzzles, tables of best moves, and EPD.

    PuzzleId,FEN,Moves,Rating,...          the solver's moves are the labels; the first move is the opponent's
    fen,best  or  position,bestmove        a line a position; of several moves, as in ['e2e4', 'd2d4'], the first is the label
    ... w KQkq - bm Nf3; id "WAC.001";     EPD; of several best moves the first is the label

A file is recognised by its first line, never by its name. Rating and themes of a puzzle go to `puzzle_rating` and
`puzzle_themes` of `games.parquet`, the id of a puzzle or an EPD line to `site`.
"""

import csv
import re
from collections.abc import Callable, Iterator, Sequence

from pipeline.dumps.formats.evaluations import JSON_LINES
from pipeline.dumps.formats.text import Readable, broken_row, clean, position_row, read_lines
from pipeline.errors import DumpError

UCI = re.compile(r"[a-h][1-8][a-h][1-8][nbrqNBRQ]?")
SAN = re.compile(r"O-O(?:-O)?|[NBRQK]?[a-h]?[1-8]?x?[a-h][1-8](?:=?[NBRQnbrq])?")
PUZZLE_COLUMNS = ("PuzzleId", "FEN", "Moves")
FEN_NAMES = ("fen", "position", "fen_original", "epd")
BEST_NAMES = ("best", "bestmove", "best_move", "best_uci", "bm", "move", "uci", "san")
EPD = re.compile(
    r"\s*((?:[pnbrqkPNBRQK1-8]+/){7}[pnbrqkPNBRQK1-8]+\s+[wb]\s+\S+\s+\S+)(?:\s+(\d+)\s+(\d+))?(?:\s+(.*))?\s*"
)
OPERATION = re.compile(r'\s*(\w+)((?:"[^"]*"?|[^;"])*)(?:;|$)')
"""An operation: its name and its operands, in which a semicolon may stand between quotes."""

Convert = Callable[[str, Readable], Iterator[str]]
"""(name of the file, its decompressed bytes) to games of PGN."""


def recognize(first: bytes) -> tuple[str, Convert | None] | None:
    """Return an input's name and its converter, by its first bytes; None for PGN and anything else.

    Evaluated positions as JSON lines have no converter: they do not become PGN.
    """
    text = first.decode("utf-8", "replace").removeprefix("\ufeff")
    line = next((line for line in text.splitlines() if line.strip()), "")
    if line.startswith("{") and '"fen"' in line and '"evals"' in line:
        return JSON_LINES, None
    if line.lower().startswith("puzzleid,"):
        return "Lichess puzzles (CSV)", _convert_puzzles
    names = _column_names(line)
    if len(names) > 1 and any(name in names for name in FEN_NAMES):
        return "best moves (CSV)", _convert_best_moves
    return ("EPD", _convert_epd) if EPD.fullmatch(line) else None


def find_first_move(field: str) -> str:
    """Return the first move in a field, UCI or SAN, "" if there is none."""
    found = UCI.search(field) or SAN.search(field)
    return found[0] if found else ""


def _convert_puzzles(name: str, stream: Readable) -> Iterator[str]:
    """Yield the games of a puzzle CSV; raises DumpError when a column that is needed is missing."""
    lines = read_lines(stream)
    _, header = next(lines, (1, ""))
    columns = _split_fields(header)
    if missing := [column for column in PUZZLE_COLUMNS if column not in columns]:
        raise DumpError(f"{name} begins like Lichess's puzzles but has no column {', '.join(missing)}")
    for number, line in lines:
        if line is None or line.strip():
            yield _write_puzzle(number, _split_fields(line), columns)


def _write_puzzle(number: int, fields: Sequence[str], columns: Sequence[str]) -> str:
    event, site = "Lichess puzzle", f"line-{number}"
    row = dict(zip(columns, fields, strict=False))
    if len(fields) != len(columns) or not all(UCI.fullmatch(move) for move in row["Moves"].split()):
        return broken_row(event=event, site=site)
    rating = row.get("Rating", "")
    tags = {
        "PuzzleRating": rating if rating.isascii() and rating.isdigit() else "",
        "PuzzleThemes": row.get("Themes", ""),
    }
    puzzle = clean(row["PuzzleId"]).replace("/", "-")
    return position_row(row["FEN"], row["Moves"], event=event, site=puzzle or site, first_label=1, tags=tags)


def _convert_best_moves(name: str, stream: Readable) -> Iterator[str]:
    """Yield the games of a table of best moves; raises DumpError when no column is the move's."""
    lines = read_lines(stream)
    _, header = next(lines, (1, ""))
    names = _column_names(header or "")
    fen = next((names.index(column) for column in FEN_NAMES if column in names), -1)
    best = next((names.index(column) for column in BEST_NAMES if column in names), -1)
    if min(fen, best) < 0:
        raise DumpError(
            f"{name} is a table of {', '.join(names)[:200]}: it needs a column fen or position, and one of "
            f"{', '.join(BEST_NAMES)}"
        )
    for number, line in lines:
        if line is None or line.strip():
            fields, event, site = _split_fields(line), "best move", f"line-{number}"
            if len(fields) == len(names):
                yield position_row(fields[fen], find_first_move(fields[best]), event=event, site=site)
            else:
                yield broken_row(event=event, site=site)


def _convert_epd(name: str, stream: Readable) -> Iterator[str]:
    """Yield the games of an EPD file; positions without a best move (`bm #4` of mate collections) have no moves."""
    for number, line in read_lines(stream):
        if line is None or (line.strip() and not line.startswith("#")):
            yield _write_epd(number, line)


def _write_epd(number: int, line: str | None) -> str:
    found, site = EPD.fullmatch(line or ""), f"line-{number}"
    if not found:
        return broken_row(event="EPD", site=site)
    fields, halfmove, fullmove, rest = found.groups()
    operations: dict[str, str] = {}
    for operation, operands in OPERATION.findall(rest or ""):
        operations.setdefault(operation, operands.strip())
    site = clean(operations.get("id", "").strip('"')).replace("/", "-") or site
    counters = [
        text if re.fullmatch(r"\d{1,4}", text) else "0"
        for text in (halfmove or operations.get("hmvc", "0"), fullmove or operations.get("fmvn", "1"))
    ]
    move = next(iter(operations.get("bm", "").split()), "").rstrip("+#!?,")
    if not (SAN.fullmatch(move) or UCI.fullmatch(move)):
        move = ""
    return position_row(" ".join([*fields.split(), *counters]), move, event="EPD", site=site)


def _column_names(header: str) -> list[str]:
    return [field.strip().lower() for field in next(csv.reader([header]), [])]


def _split_fields(line: str | None) -> list[str]:
    """Split a line of CSV; a broken one has no fields."""
    try:
        return [] if line is None else next(csv.reader([line], strict=True), [])
    except csv.Error:
        return []
