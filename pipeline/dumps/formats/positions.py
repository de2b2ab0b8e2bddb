"""Convert text other than PGN: CSV tables and EPD. Other known formats are refused by name.

    PuzzleId,FEN,Moves,Rating,...          see tables.py
    ... w KQkq - bm Nf3; id "WAC.001";     EPD; the first best move is the label

The format is detected from the first lines, never from the file name. The id of an EPD line is
stored in `site`.
"""

import csv
import re
from collections.abc import Callable, Iterator, Sequence
from itertools import islice

from pipeline.dumps.formats.evaluations import JSON_LINES
from pipeline.dumps.formats.tables import READABLE, SAN, UCI, Table, guess_header, recognize_columns
from pipeline.dumps.formats.text import (
    FIRST_BYTES,
    Readable,
    clean,
    read_lines,
    write_broken_row,
    write_position_row,
)
from pipeline.errors import DumpError

DELIMITERS = ",\t;|"
JSON_START = re.compile(r'\s*[\[{]\s*\{?\s*"\w+"\s*:')
SAMPLED_LINES = 20
"""Number of lines read to tell a table with unknown columns from PGN."""
EPD = re.compile(
    r"\s*((?:[pnbrqkPNBRQK1-8]+/){7}[pnbrqkPNBRQK1-8]+\s+[wb]\s+\S+\s+\S+)"
    r"(?:\s+(\d+)\s+(\d+))?(?:\s+(.*))?\s*"
)
OPERATION = re.compile(r'\s*(\w+)((?:"[^"]*"?|[^;"])*)(?:;|$)')
"""An EPD operation: its name and its operands; a quoted operand may contain semicolons."""

Convert = Callable[[Readable], Iterator[str]]
"""Converter of a decompressed stream to PGN games."""


def recognize(first: bytes) -> tuple[str, Convert | None] | None:
    """Return the name and converter of an input from its first bytes; None for PGN or unknown text.

    The converter of evaluated positions in JSON lines is None: they do not become PGN. Raises
    DumpError, without the file's name, for a known format that cannot be read.
    """
    text = first.decode("utf-8", "replace").removeprefix("\ufeff")
    whole = re.split(r"\r\n|\n|\r", text)
    # the last line is cut
    whole = whole[:-1] if len(first) >= FIRST_BYTES and len(whole) > 1 else whole
    lines = list(islice((line for line in whole if line.strip()), SAMPLED_LINES))
    line = lines[0] if lines else ""
    if JSON_START.match(text):
        if line.lstrip()[0] == "{" and any('"fen"' in each and '"evals"' in each for each in lines):
            return JSON_LINES, None
        raise DumpError('is JSON, but not lines of {"fen": ..., "evals": ...}: export games as PGN')
    if re.match(r"\s*<(!doctype|html)\b", text, re.IGNORECASE):
        raise DumpError("is a web page: download the file that it links to")
    if line.startswith(("[", "{", "%")):
        return None
    for delimiter in DELIMITERS:
        fields = _split_fields(line, delimiter)
        if len(fields) > 1 and (found := _recognize_table(fields, delimiter)):
            return found
    if EPD.fullmatch(line):
        return "EPD", _convert_epd
    if any(_is_table(lines, delimiter) for delimiter in DELIMITERS):
        raise DumpError(
            f"is a table with the columns {line[:200]}, which cannot be read: {READABLE}"
        )
    return None


def _recognize_table(fields: Sequence[str], delimiter: str) -> tuple[str, Convert] | None:
    """Return the name and converter of a table from its first line, None for other text."""
    table, has_header = recognize_columns(fields), True
    if table is None and (guessed := guess_header(fields)):
        table, has_header = recognize_columns(guessed), False
    if table is None:
        return None
    made, width = table, len(fields)

    def convert(stream: Readable) -> Iterator[str]:
        return _convert_table(stream, made, delimiter, width, has_header)

    return f"{table.name} ({'TSV' if delimiter == chr(9) else 'CSV'})", convert


def _is_table(lines: Sequence[str], delimiter: str) -> bool:
    """Return whether all lines have the same number of fields, at least three."""
    counts = {len(_split_fields(line, delimiter)) for line in lines}
    has_tags = any(line.startswith("[") for line in lines)
    return len(lines) > 1 and len(counts) == 1 and counts.pop() > 2 and not has_tags


def _convert_table(
    stream: Readable, table: Table, delimiter: str, width: int, has_header: bool
) -> Iterator[str]:
    lines = ((number, line) for number, line in read_lines(stream) if line is None or line.strip())
    for number, line in islice(lines, int(has_header), None):
        fields, place = _split_fields(line, delimiter), f"line-{number}"
        if len(fields) == width:
            yield table.format_row(place, {name: fields[at] for name, at in table.columns.items()})
        else:
            why = f": {len(fields)} fields, expected {width}" if fields else ""
            yield write_broken_row(event=table.name + why, site=place)


def _convert_epd(stream: Readable) -> Iterator[str]:
    """Yield the games of an EPD file; without a best move (`bm #4`) a game has no moves."""
    for number, line in read_lines(stream):
        if line is None or (line.strip() and not line.startswith("#")):
            yield _write_epd(number, line)


def _write_epd(number: int, line: str | None) -> str:
    found, site = EPD.fullmatch(line or ""), f"line-{number}"
    if not found:
        return write_broken_row(event="EPD", site=site)
    fields, halfmove, fullmove, rest = found.groups()
    operations: dict[str, str] = {}
    for operation, operands in OPERATION.findall(rest or ""):
        operations.setdefault(operation, operands.strip())
    site = clean(operations.get("id", "").strip('"')).replace("/", "-") or site
    counters = [halfmove or operations.get("hmvc", "0"), fullmove or operations.get("fmvn", "1")]
    counters = [text if re.fullmatch(r"\d{1,4}", text) else "0" for text in counters]
    move = next(iter(operations.get("bm", "").split()), "").rstrip("+#!?,")
    if not (SAN.fullmatch(move) or UCI.fullmatch(move)):
        move = ""
    return write_position_row(" ".join([*fields.split(), *counters]), move, event="EPD", site=site)


def _split_fields(line: str | None, delimiter: str) -> list[str]:
    """Split a line of a table into fields; return [] for an invalid one."""
    try:
        return next(csv.reader([line or ""], strict=True, delimiter=delimiter), [])
    except csv.Error:
        return []
