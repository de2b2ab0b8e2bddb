"""CSV that a spreadsheet opens without running anything in it."""

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

FORMULA = ("=", "+", "-", "@", "\t")
"""First characters by which a spreadsheet takes a text for a formula."""


def csv_text(columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> str:
    """Return rows as CSV with a header; a missing value is empty.

    Texts may come from others, as an engine's name does: one that begins like a formula gets an apostrophe before it.
    """
    written = io.StringIO()
    writer = csv.DictWriter(written, fieldnames=columns, lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({name: _harmless(value) for name, value in row.items()})
    return written.getvalue()


def _harmless(value: Any) -> Any:
    """Return a value that no spreadsheet takes for a formula, or for the end of a row; numbers stay numbers."""
    if not isinstance(value, str):
        return value
    value = value.replace("\r", " ")  # csv does not quote it where rows end in a line feed
    return f"'{value}" if value.startswith(FORMULA) else value
