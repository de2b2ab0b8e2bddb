"""Launchpad forms made from the same frozen dataclasses as the command line's options.

`form(cls)` is the Dagster schema: a field each, its default, and the sentence under the field as its description.
`filled(cls, values)` builds the dataclass from what the form (or a child's JSON request) says, so that every check in
`__post_init__` holds for both. A launchpad hides fields that default to None; those are shown as 0 or "" instead.
"""

import ast
import dataclasses
import functools
import inspect
import textwrap
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from engine.errors import UserError

if TYPE_CHECKING:
    from dagster import Enum, Field

T = TypeVar("T")
EMPTY: dict[Any, Any] = {int: 0, float: 0.0, str: "", Path: ""}
"""How a form says None, by type."""


def form(cls: type[Any], example: Any = None) -> dict[str, "Field"]:
    """Describe a configuration dataclass as Dagster fields, nested dataclasses as nested fields.

    Defaults are those of `example`, an instance, or the class's own.
    """
    hints, sentences, fields = typing.get_type_hints(cls), descriptions(cls), dataclasses.fields(cls)
    return {
        field.name: _field(
            hints[field.name],
            field.name,
            sentences.get(field.name, ""),
            _default(field) if example is None else getattr(example, field.name),
        )
        for field in fields
    }


def filled(cls: type[T], values: Mapping[str, Any]) -> T:
    """Build the dataclass `cls` from plain values, as a form or JSON has them; UserError names what does not fit."""
    hints = typing.get_type_hints(cls)
    unknown = sorted(set(values) - set(hints))
    if unknown:
        raise UserError(f"{cls.__name__} has no option {unknown[0]!r}; it has {', '.join(hints)}")
    try:
        return cls(**{name: _value(hints[name], value) for name, value in values.items()})
    except UserError:
        raise
    except (TypeError, ValueError) as error:
        raise UserError(f"{cls.__name__}: {error}") from error


def plain(settings: Any) -> dict[str, Any]:
    """Return a configuration dataclass as JSON values."""
    result: dict[str, Any] = _jsonable(dataclasses.asdict(settings))
    return result


def descriptions(cls: type[Any]) -> dict[str, str]:
    """Collect the PEP 257 string under each field, this class's and those that it inherits."""
    found: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if not dataclasses.is_dataclass(base):
            continue
        body = ast.parse(textwrap.dedent(inspect.getsource(base))).body[0]
        assert isinstance(body, ast.ClassDef)
        for field, text in zip(body.body, body.body[1:], strict=False):
            if not (isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)):
                continue
            if isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
                found[field.target.id] = inspect.cleandoc(str(text.value.value))
    return found


def _default(field: "dataclasses.Field[Any]") -> Any:
    """Give a field's default, MISSING if it has none."""
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()


def _field(hint: Any, name: str, sentence: str, default: Any) -> "Field":
    """Describe one field."""
    import dagster as dg

    inner, optional = _without_none(hint)
    if dataclasses.is_dataclass(inner):
        assert isinstance(inner, type)
        example = None if default is dataclasses.MISSING else default
        fields = form(inner, example)
        if any(field.is_required for field in fields.values()):
            return dg.Field(fields, description=sentence)
        defaults = {name: field.default_value for name, field in fields.items()}  # a launchpad shows just what is said
        return dg.Field(fields, default_value=defaults, is_required=False, description=sentence)
    kind = _kind(inner, name, optional)
    if default is dataclasses.MISSING:
        return dg.Field(kind, is_required=True, description=sentence)
    if optional:
        none = EMPTY.get(inner, "")
        default = none if default is None else default
        sentence = f"{sentence} ({none!r}: none)"
    return dg.Field(kind, default_value=_jsonable(default), is_required=False, description=sentence)


def _kind(hint: Any, name: str, optional: bool) -> Any:
    """Map a Python type to a Dagster configuration type."""
    import dagster as dg

    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Literal:
        return _choice(name, (*arguments, "") if optional else arguments)
    if origin is tuple:
        return dg.Array(_kind(arguments[0], name, optional=False))
    if hint is Path:
        return str
    if hint in (int, float, bool, str):
        return hint
    raise TypeError(f"the option {name} has the type {hint}, which no form can show")


@functools.cache
def _choice(name: str, choices: tuple[str, ...]) -> "Enum":
    """Make one enum of a set of words; Dagster wants a name to mean one object."""
    import dagster as dg

    return dg.Enum(f"{name}: {' | '.join(map(repr, choices))}", [dg.EnumValue(choice) for choice in choices])


def _value(hint: Any, value: Any) -> Any:
    """Turn one plain value into what the field's type says."""
    inner, optional = _without_none(hint)
    if value is None or (optional and not isinstance(value, bool) and value in (0, "", [])):
        return None
    origin, arguments = typing.get_origin(inner), typing.get_args(inner)
    if dataclasses.is_dataclass(inner):
        assert isinstance(inner, type)
        return filled(inner, value)
    if origin is tuple:
        return tuple(_value(arguments[0], item) for item in value)
    if inner is Path:
        return Path(value)
    if inner is float:
        return float(value)
    return value


def _without_none(hint: Any) -> tuple[Any, bool]:
    """Split `X | None` into X and whether None is allowed."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        rest = [item for item in typing.get_args(hint) if item is not type(None)]
        assert len(rest) == 1, f"a form shows one type a field, not {hint}"
        return rest[0], True
    return hint, False


def _jsonable(value: Any) -> Any:
    """Replace tuples by lists and paths by strings, at any depth."""
    if isinstance(value, Mapping):
        return {name: _jsonable(item) for name, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [_jsonable(item) for item in value]
    return str(value) if isinstance(value, Path) else value
