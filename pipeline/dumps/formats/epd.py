"""EPD: four fields of a position, then operations; `bm` is the best move, in SAN, and the first of several is the label.

Positions without `bm`, or whose `bm` is no move (`bm #4` of mate collections), are counted under "no moves". `id` goes to
the `site` of `games.parquet`.
"""

import re
from collections.abc import Iterator

from pipeline.dumps.formats.best_moves import SAN
from pipeline.dumps.formats.text import UCI, Readable, broken, clean, gathered, lines, position

EVENT = "EPD"
LINE = re.compile(
    r"\s*((?:[pnbrqkPNBRQK1-8]+/){7}[pnbrqkPNBRQK1-8]+\s+[wb]\s+\S+\s+\S+)(?:\s+(\d+)\s+(\d+))?(?:\s+(.*))?\s*"
)
OPERATION = re.compile(r'\s*(\w+)((?:"[^"]*"?|[^;"])*)(?:;|$)')
"""An operation: its name and its operands, in which a semicolon may stand between quotes."""


def recognise(first_line: str) -> bool:
    """Tell a line of EPD."""
    return LINE.fullmatch(first_line.lstrip("\ufeff")) is not None


def pgn(name: str, stream: Readable) -> Iterator[bytes]:
    """Turn the stream of an EPD file into PGN text."""
    return gathered(_games(stream))


def _games(stream: Readable) -> Iterator[str]:
    for number, line in lines(stream):
        if line is None or (line.strip() and not line.startswith("#")):
            yield _game(number, line)


def _game(number: int, line: str | None) -> str:
    site = f"line-{number}"
    found = LINE.fullmatch(line or "")
    if not found:
        return broken(event=EVENT, site=site)
    fields, halfmove, fullmove, rest = found.groups()
    said: dict[str, str] = {}
    for name, operands in OPERATION.findall(rest or ""):
        said.setdefault(name, operands.strip())
    site = clean(said.get("id", "").strip('"')).replace("/", "-") or site
    halfmove = halfmove or _counter(said.get("hmvc", "0"))
    fullmove = fullmove or _counter(said.get("fmvn", "1"))
    words = said.get("bm", "").split()
    move = words[0].rstrip("+#!?,") if words else ""
    if not (SAN.fullmatch(move) or UCI.fullmatch(move)):
        move = ""
    return position(f"{' '.join(fields.split())} {halfmove} {fullmove}", move, event=EVENT, site=site)


def _counter(text: str) -> str:
    return text if re.fullmatch(r"\d{1,4}", text) else "0"
