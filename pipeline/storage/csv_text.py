"""CSV whose cells a spreadsheet does not run as formulas."""

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

FORMULA = ("=", "+", "-", "@", "\t")
"""First characters by which a spreadsheet takes a text for a formula."""


def csv_text(columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> str:
    """Return rows as CSV with a header; a missing value is empty.

    Texts may come from a stranger, as an engine's name does: one that begins like a formula gets an
    apostrophe before it.
    """
    written = io.StringIO()
    writer = csv.DictWriter(written, fieldnames=columns, lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({name: _quote_formula(value) for name, value in row.items()})
    return written.getvalue()


def _quote_formula(value: Any) -> Any:
    """Quote a text that a spreadsheet would run as a formula, and drop line ends."""
    if not isinstance(value, str):
        return value
    value = value.replace("\r", " ")  # csv does not quote it where rows end in a line feed
    return f"'{value}" if value.startswith(FORMULA) else value
