"""Launchpad forms, generated from the dataclasses that define the command line's options.

`Form[Options]` annotates the parameter `config` of an asset. Dagster shows its fields with type,
choices, default and description, and refuses values of other types at launch. `read_form(config)`
builds the dataclass, whose `__post_init__` checks the rest. A launchpad hides fields that default
to None (dagster#31166), so None is shown as 0 or "".

A form has no field that names a program, an address or a file (`is_hidden`). Such fields keep the
dataclass's default, and the assets set them from the environment (resources.py).
"""

import dataclasses
import functools
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, TypeVar

import dagster as dg
from pydantic import Field, create_model

from pipeline.cli.settings import default_of, descriptions, split_optional

T = TypeVar("T")
HIDDEN = frozenset({"engine"})
"""Names of fields that hold the command of a chess engine, or the address of a Ray cluster."""
HIDDEN_FIELD = {"hidden": True}
"""Metadata of a dataclass's field that a form leaves out."""


class Form(dg.Config, Generic[T]):
    """The form of a dataclass; `Form[Options]` is the class for `Options`."""

    if not TYPE_CHECKING:

        def __class_getitem__(cls, options):
            return make_form(options) if dataclasses.is_dataclass(options) else cls

    made_from: ClassVar[type[Any]]
    """The dataclass."""


def read_form(config: Form[T]) -> T:
    """Return the dataclass with the values of a form; raises UserError for invalid values."""
    options: T = build_options(config.made_from, config.model_dump())
    return options


@functools.cache
def make_form(cls: type[Any], example: Any = None) -> "type[Form[Any]]":
    """Return the `dg.Config` class of a dataclass; nested dataclasses become nested classes.

    Defaults are those of `example`, an instance, or of the dataclass.
    """
    hints, sentences = typing.get_type_hints(cls, include_extras=True), descriptions(cls)
    fields = {
        field.name: _make_field(
            hints[field.name], default_of(field, example), sentences.get(field.name, "")
        )
        for field in dataclasses.fields(cls)
        if not (field.metadata.get("hidden") or is_hidden(field.name, hints[field.name]))
    }
    made: type[Form[Any]] = create_model(cls.__name__, __base__=Form, __doc__=cls.__doc__, **fields)  # type: ignore[call-overload]
    made.made_from = cls
    return made


def is_hidden(name: str, hint: Any) -> bool:
    """Return whether a form leaves a field out, because it names a program or a file."""
    return name in HIDDEN or _split(hint)[0] is Path


def build_options(cls: type[T], values: Mapping[str, Any]) -> T:
    """Return the dataclass `cls` with a form's values; raises UserError for invalid ones."""
    hints = typing.get_type_hints(cls)
    return cls(**{name: _convert(hints[name], value) for name, value in values.items()})


def _make_field(hint: Any, default: Any, sentence: str) -> tuple[Any, Any]:
    """Return a type that Dagster can show, with default and description, for `create_model`."""
    kind, optional = _split(hint)
    if dataclasses.is_dataclass(kind):
        assert isinstance(kind, type)
        nested = make_form(kind, None if default is dataclasses.MISSING else default)
        complete = all(not field.is_required() for field in nested.model_fields.values())
        return nested, Field(default=nested() if complete else ..., description=sentence)
    if typing.get_origin(kind) is tuple:
        kind, default = list[typing.get_args(kind)[0]], list(default)  # type: ignore[misc]
    if optional:
        empty = 0 if kind in (int, float) else ""
        default, sentence = (
            empty if default is None else default,
            f"{sentence} ({empty!r} means none.)",
        )
        if typing.get_origin(kind) is Literal:
            kind = Literal[(*typing.get_args(kind), "")]
    return kind, Field(
        default=... if default is dataclasses.MISSING else default, description=sentence
    )


def _convert(hint: Any, value: Any) -> Any:
    """Convert a form's value to the field's type."""
    kind, optional = _split(hint)
    if optional and not isinstance(value, bool) and value in (None, 0, ""):
        return None
    if dataclasses.is_dataclass(kind):
        return build_options(typing.cast("type[Any]", kind), value)
    if typing.get_origin(kind) is tuple:
        return tuple(value)
    return float(value) if kind is float else value


def _split(hint: Any) -> tuple[Any, bool]:
    """Return the type in `X | None` and whether None is allowed.

    `Annotated[str, function]` stands for a choice of the words that the function returns.
    """
    if typing.get_origin(hint) is typing.Annotated:
        _, words = typing.get_args(hint)
        return Literal[tuple(words())], False
    return split_optional(hint)
