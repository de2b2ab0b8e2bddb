"""Format results as aligned text, Markdown tables and CSV."""

import csv
import io
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

NUMBER_CELL = re.compile(r"-|[-+]?[\d,]+(\.\d+)?( ?%)?")
"""Pattern of the cells that are right-aligned."""
MAX_CELL_CHARS = 60
"""Maximum number of characters in a Markdown cell; text from a dump may be long."""
FORMULA_PREFIXES = ("=", "+", "-", "@", "\t")
"""First characters that make a spreadsheet read a text as a formula."""


def format_plain_text(result: Mapping[str, Any], indent: int = 0) -> str:
    """Format a result as aligned lines of names and values; nested objects are indented."""
    leaves = [name for name, value in result.items() if not isinstance(value, dict)]
    width, lines = max(map(len, leaves), default=0), []
    for name, value in result.items():
        if isinstance(value, dict):
            lines += [" " * indent + name, format_plain_text(value, indent + 2)]
        else:
            lines.append(" " * indent + f"{name:<{width}}  {_format_value(value)}")
    return "\n".join(lines)


def format_text_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Format rows as a table of aligned columns, with three decimals."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    cells = [[_format_value(row.get(name), places=3) for name in names] for row in rows]
    return align_columns([name.replace("_", " ") for name in names], cells)


def align_columns(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Format a table with two spaces between columns, numbers right-aligned, words left-aligned."""
    columns = []
    for title, *cells in zip(header, *rows, strict=True):
        width = max(map(len, (title, *cells)))
        is_number = all(map(NUMBER_CELL.fullmatch, cells))
        columns.append(
            [f"{cell:>{width}}" if is_number else f"{cell:<{width}}" for cell in (title, *cells)]
        )
    return "\n".join("  ".join(line).rstrip() for line in zip(*columns, strict=True))


def format_markdown(columns: str, rows: Iterable[Sequence[str]]) -> str:
    """Format a Markdown table; `columns` are the titles, separated by `|`."""
    titles = columns.split("|")
    lines = [f"| {' | '.join(row)} |" for row in (titles, *rows)]
    return "\n".join([lines[0], "|" + "---|" * len(titles), *lines[1:]])


def format_markdown_table(rows: Sequence[Mapping[str, object]]) -> str:
    """Format rows as a Markdown table; text is escaped, since it may come from a dump."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    return format_markdown(
        "|".join(names), [[escape_markdown(row.get(name)) for name in names] for row in rows]
    )


def _format_value(value: Any, places: int = 4) -> str:
    """Format a value, with thousands separators for integers and `places` decimals for floats."""
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "-"}[value]
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, (list, tuple)):
        return ", ".join(map(_format_value, value)) or "-"
    return f"{value:.{places}f}" if isinstance(value, float) else str(value)


def escape_markdown(value: object) -> str:
    """Format a value as one short line, with Markdown and HTML escaped."""
    text = "" if value is None else f"{value}"
    return "".join(
        f"&#{ord(char)};" if char in "|<>&[]`*\\" else char
        for char in text[:MAX_CELL_CHARS]
        if char.isprintable()
    )


def format_csv(columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> str:
    """Format rows as CSV with a header; missing values are empty.

    Text that starts like a formula gets an apostrophe in front, since it may come from outside,
    such as the name of an engine.
    """
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=columns, lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({name: _quote_formula(value) for name, value in row.items()})
    return text.getvalue()


def _quote_formula(value: Any) -> Any:
    """Quote text that a spreadsheet would run as a formula, and replace carriage returns."""
    if not isinstance(value, str):
        return value
    value = value.replace("\r", " ")  # csv quotes it only if lines end with it
    return f"'{value}" if value.startswith(FORMULA_PREFIXES) else value
