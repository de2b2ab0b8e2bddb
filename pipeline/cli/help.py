"""Text for a terminal: its width, its colours, and the sentences under the fields of a dataclass."""

import ast
import dataclasses
import inspect
import os
import re
import shutil
import textwrap
from typing import Any, TextIO

WIDEST = 120
"""Columns that sentences fill at most."""


def columns() -> int:
    """Return the columns that text may fill: the terminal's, or 80 where there is none."""
    return min(shutil.get_terminal_size().columns, WIDEST)


def coloured(stream: TextIO) -> bool:
    """Return whether to colour a stream: it is a terminal, and neither NO_COLOR (no-color.org) nor TERM=dumb is set."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM", "dumb") != "dumb"


def emphasised(text: str) -> str:
    """Return a result's text for a terminal: Markdown's tables as columns, titles bold, the next command in colour."""
    text = re.sub(r"(?m)(?:^\|.*\|$\n?){2,}", _columns, text)
    text = re.sub(r"(?m)^(?:[A-Z]{3,}[A-Z ]*|(?:by [a-z ]+|calibration))$", "\x1b[1m\\g<0>\x1b[0m", text)
    return re.sub(r"(?m)^(next: )(.*)$", "\\1\x1b[36m\\2\x1b[0m", text)


def _columns(table: re.Match[str]) -> str:
    """Return a table of Markdown as aligned columns."""
    from pipeline.evaluation.render import aligned

    header, _, *rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in table[0].splitlines())
    alike = all(len(row) == len(header) for row in rows)
    return aligned(header, rows) + "\n" if alike else table[0]


def descriptions(cls: type[Any]) -> dict[str, str]:
    """Return the docstring under each field, this class's and those that it inherits, by the field's name."""
    found: dict[str, str] = {}
    for base in filter(dataclasses.is_dataclass, reversed(cls.__mro__)):
        (body,) = ast.parse(textwrap.dedent(inspect.getsource(base))).body
        assert isinstance(body, ast.ClassDef)
        for field, text in zip(body.body, body.body[1:], strict=False):
            if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
                found[ast.unparse(field.target)] = inspect.cleandoc(str(text.value.value))
    return found
