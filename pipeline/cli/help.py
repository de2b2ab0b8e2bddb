"""What a terminal shows besides: help, its sentences wrapped to the width, and colours where they are wanted."""

import ast
import codecs
import contextlib
import dataclasses
import inspect
import io
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Callable
from types import MappingProxyType
from typing import Any, TextIO, get_args, get_type_hints

WIDEST = 120
"""Columns that sentences fill at most."""


def columns() -> int:
    """Return the columns that text may fill: the terminal's, or 80 where there is none."""
    return min(shutil.get_terminal_size().columns, WIDEST)


def coloured(stream: TextIO) -> bool:
    """Return whether a stream is a terminal that is to show colours: NO_COLOR (no-color.org) and TERM=dumb say no."""
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


def describe(cls: type[Any]) -> None:
    """Tell tyro the sentences of a command's options: by itself it breaks them where the docstring's lines end."""
    said = descriptions(cls)
    for name, hint in get_type_hints(cls).items():
        for kind in (hint, *get_args(hint)):
            if isinstance(kind, type) and dataclasses.is_dataclass(kind):
                describe(kind)
        if name in said:
            field: Any = cls.__dataclass_fields__[name]
            field.metadata = MappingProxyType({"help": " ".join(said[name].split())})


class _Page(io.StringIO):
    """What help is written into, in the encoding and with the colours of standard output."""

    def __init__(self) -> None:
        super().__init__()
        self.shown = sys.stdout

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """Return the encoding of standard output by the name that tyro knows it by: it draws lines where it is utf-8."""
        return codecs.lookup(self.shown.encoding or "ascii").name

    def isatty(self) -> bool:
        """Return whether tyro may use colours."""
        return coloured(self.shown)


def help_of(write: Callable[[], object]) -> str:
    """Return the help that `write` prints before it exits, its sentences wrapped; boxes are as wide as the terminal."""
    page = _Page()
    with contextlib.suppress(SystemExit), contextlib.redirect_stdout(page):
        write()
    lines = page.getvalue().rstrip().splitlines()
    end = next((number for number, line in enumerate(lines) if re.search(r"[╭+][─-]{2}", line)), len(lines))
    width = columns()
    wrapped = [textwrap.fill(line, width, break_long_words=False, break_on_hyphens=False) for line in lines[:end]]
    return "\n".join([*wrapped, *lines[end:]])
