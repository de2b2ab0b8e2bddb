"""The descriptions of settings: the docstrings under the fields of a dataclass."""

import ast
import dataclasses
import inspect
import textwrap
from typing import Any


def descriptions(cls: type[Any]) -> dict[str, str]:
    """Return the docstring under each field of a dataclass by name, inherited fields included."""
    found: dict[str, str] = {}
    for base in filter(dataclasses.is_dataclass, reversed(cls.__mro__)):
        (body,) = ast.parse(textwrap.dedent(inspect.getsource(base))).body
        assert isinstance(body, ast.ClassDef)
        for field, text in zip(body.body, body.body[1:], strict=False):
            if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
                found[ast.unparse(field.target)] = inspect.cleandoc(str(text.value.value))
    return found
