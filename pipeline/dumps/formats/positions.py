"""Detect the format of a text, and convert CSV tables and EPD to PGN.

    PuzzleId,FEN,Moves,Rating,...          a table: see tables.py
    ... w KQkq - bm Nf3; id "WAC.001";     EPD; the first best move is the label

The format is detected from the first lines, never from the file name. Known formats that cannot be
read are refused by name. The id of an EPD line is stored in `site` of `games.parquet`.
"""

import csv
import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice

from pipeline.dumps.formats.evaluations import JSON_LINES
from pipeline.dumps.formats.tables import (
    READABLE_TABLES,
    SAN_PATTERN,
    UCI_PATTERN,
    Table,
    guess_header,
    recognize_columns,
)
from pipeline.dumps.formats.text import (
    FIRST_BYTES,
    Readable,
    clean_value,
    format_broken_row,
    format_position_game,
    read_lines,
)
from pipeline.errors import DumpError

DELIMITERS = ",\t;|"
JSON_START_PATTERN = re.compile(r'\s*[\[{]\s*\{?\s*"\w+"\s*:')
SAMPLED_LINES = 20
"""Number of lines read to tell a table with unknown columns from PGN."""
EPD_PATTERN = re.compile(
    r"\s*((?:[pnbrqkPNBRQK1-8]+/){7}[pnbrqkPNBRQK1-8]+\s+[wb]\s+\S+\s+\S+)"
    r"(?:\s+(\d+)\s+(\d+))?(?:\s+(.*))?\s*"
)
OPERATION_PATTERN = re.compile(r'\s*(\w+)((?:"[^"]*"?|[^;"])*)(?:;|$)')
"""An EPD operation: its name and its operands; a quoted operand may contain semicolons."""

Convert = Callable[[Readable], Iterator[str]]
"""Converter of a decompressed stream to PGN games."""


def detect_format(first: bytes) -> tuple[str, Convert | None] | None:
    """Detect a format by an input's first bytes; return its name and its converter to PGN, or None.

    None stands for PGN and unknown text. The converter of evaluated positions in JSON lines is
    None, since they do not become PGN. Raises DumpError, without the file's name, for a known
    format that cannot be read.
    """
    text = first.decode("utf-8", "replace").removeprefix("\ufeff")
    lines = re.split(r"\r\n|\n|\r", text)
    if len(first) >= FIRST_BYTES and len(lines) > 1:
        del lines[-1]  # it may be cut off
    lines = list(islice((line for line in lines if line.strip()), SAMPLED_LINES))
    line = lines[0] if lines else ""
    if JSON_START_PATTERN.match(text):
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
    if EPD_PATTERN.fullmatch(line):
        return "EPD", _convert_epd
    if any(_is_table(lines, delimiter) for delimiter in DELIMITERS):
        raise DumpError(
            f"is a table with the columns {line[:200]}, which cannot be read: {READABLE_TABLES}"
        )
    return None


def _recognize_table(fields: Sequence[str], delimiter: str) -> tuple[str, Convert] | None:
    """Return the name and converter of a table from its first line, None for other text."""
    table, has_header = recognize_columns(fields), True
    if table is None and (guessed := guess_header(fields)):
        table, has_header = recognize_columns(guessed), False
    if table is None:
        return None
    convert = partial(
        _convert_table, table=table, delimiter=delimiter, width=len(fields), has_header=has_header
    )
    return f"{table.name} ({'TSV' if delimiter == chr(9) else 'CSV'})", convert


def _is_table(lines: Sequence[str], delimiter: str) -> bool:
    """Return whether lines look like a table: several, no tags, and the same 3 or more fields."""
    counts = {len(_split_fields(line, delimiter)) for line in lines}
    has_tags = any(line.startswith("[") for line in lines)
    return len(lines) > 1 and len(counts) == 1 and counts.pop() > 2 and not has_tags


def _convert_table(
    stream: Readable, *, table: Table, delimiter: str, width: int, has_header: bool
) -> Iterator[str]:
    """Yield the rows of a CSV table as PGN; a row without `width` fields is broken."""
    lines = ((number, line) for number, line in read_lines(stream) if line is None or line.strip())
    for number, line in islice(lines, int(has_header), None):
        fields, place = _split_fields(line, delimiter), f"line-{number}"
        if len(fields) == width:
            yield table.format_row(place, {name: fields[at] for name, at in table.columns.items()})
        else:
            problem = f": {len(fields)} fields, expected {width}" if fields else ""
            yield format_broken_row(event=table.name + problem, site=place)


def _convert_epd(stream: Readable) -> Iterator[str]:
    """Yield the lines of an EPD file as PGN games, without moves if there is no best move."""
    for number, line in read_lines(stream):
        if line is None or (line.strip() and not line.startswith("#")):
            yield _format_epd(number, line)


def _format_epd(number: int, line: str | None) -> str:
    """Format a line of EPD as a PGN game; None (a line that is too long) gives a broken row."""
    found, site = EPD_PATTERN.fullmatch(line or ""), f"line-{number}"
    if not found:
        return format_broken_row(event="EPD", site=site)
    fields, halfmove, fullmove, rest = found.groups()
    operations: dict[str, str] = {}
    for operation, operands in OPERATION_PATTERN.findall(rest or ""):
        operations.setdefault(operation, operands.strip())
    site = clean_value(operations.get("id", "").strip('"')).replace("/", "-") or site
    counters = [halfmove or operations.get("hmvc", "0"), fullmove or operations.get("fmvn", "1")]
    counters = [text if re.fullmatch(r"\d{1,4}", text) else "0" for text in counters]
    move = next(iter(operations.get("bm", "").split()), "").rstrip("+#!?,")
    if not (SAN_PATTERN.fullmatch(move) or UCI_PATTERN.fullmatch(move)):
        move = ""
    return format_position_game(
        " ".join([*fields.split(), *counters]), move, event="EPD", site=site
    )


def _split_fields(line: str | None, delimiter: str) -> list[str]:
    """Split a line of a table into fields; return [] for an invalid line or None."""
    try:
        return next(csv.reader([line or ""], strict=True, delimiter=delimiter), [])
    except csv.Error:
        return []
