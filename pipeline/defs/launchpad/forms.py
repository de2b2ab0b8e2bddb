"""Launchpad forms, generated from the dataclasses that define the command line's options.

An asset annotates its parameter `config` with `Form[Options]`. Dagster shows each field with its
type, choices, default and description, and rejects values of the wrong type at launch.
`read_form(config)` builds the dataclass, which validates the values. The launchpad hides fields
that default to None (dagster#31166), so None is shown as 0 or "".

Forms leave out fields that name a program, an address or a file (`is_hidden`). These keep the
dataclass's default, or the assets set them from the environment (resources.py).
"""

import dataclasses
import functools
import json
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, TypeVar

import dagster as dg
from dagster._config import snap
from pydantic import Field, create_model

from model.settings import validate
from pipeline.cli.settings import default_of, descriptions, fields_of, split_optional

T = TypeVar("T")
HIDDEN = frozenset({"engine"})
"""Names of fields that contain a chess engine's command or a Ray cluster's address."""


def keep_order() -> None:
    """Make Dagster show a form's fields in declaration order, as `--help-all` does.

    Dagster sorts fields and defaults by name, without a setting to change that. This patch depends
    on its internals: if another version sorts elsewhere, forms are merely sorted by name again.
    """

    def write_default(field: dg.Field) -> str:
        value = field.default_value
        return json.dumps(value) if isinstance(value, dict) else dg.serialize_value(value)

    describing: Any = snap
    describing._ct_name = lambda field: ""
    fields: Any = dg.Field
    fields.default_value_as_json_str = property(write_default)


class Form(dg.Config, Generic[T]):
    """Base class of forms; `Form[Options]` is the form of the dataclass `Options`."""

    if not TYPE_CHECKING:

        def __class_getitem__(cls, options):
            return make_form(options) if dataclasses.is_dataclass(options) else cls

    made_from: ClassVar[type[Any]]
    """The dataclass of the form."""


def read_form(config: Form[T]) -> T:
    """Build the dataclass from a form's values. Raises UserError for invalid ones."""
    options: T = build_options(config.made_from, config.model_dump())
    return options


@functools.cache
def make_form(
    cls: type[Any], example: Any = None, without: tuple[str, ...] = ()
) -> "type[Form[Any]]":
    """Generate the `dg.Config` class of a dataclass; nested dataclasses become nested classes.

    Defaults come from the instance `example` if given, otherwise from the dataclass. A field's
    metadata `first` lists fields of its nested dataclass to move to the top of the outer form.
    """
    hints, sentences = typing.get_type_hints(cls, include_extras=True), descriptions(cls)
    first, fields = dict[str, Any](), dict[str, Any]()
    for field in fields_of(cls):
        name, hint, default = field.name, hints[field.name], default_of(field, example)
        if name in without or is_hidden(name, hint):
            continue
        before = field.metadata.get("first", ())
        fields[name] = _make_field(hint, default, sentences.get(name, ""), before)
        for moved in before:
            outer = make_form(hint, default).model_fields[moved]
            first[moved] = (outer.annotation, outer)
    create: Any = create_model
    made: type[Form[Any]] = create(
        cls.__name__, __base__=Form, __doc__=cls.__doc__, **first, **fields
    )
    made.made_from = cls
    return made


def is_hidden(name: str, hint: Any) -> bool:
    """Return whether forms leave out a field because it names a program or a file."""
    return name in HIDDEN or _split(hint)[0] is Path


def build_options(cls: type[T], values: Mapping[str, Any]) -> T:
    """Build the dataclass `cls` from a form's values. Raises UserError for invalid ones."""
    return validate(cls, _restore(cls, dict(values)))


def _restore(cls: type[Any], values: dict[str, Any]) -> dict[str, Any]:
    """Convert a form's values to the dataclass's: moved fields nested again, empty ones None."""
    hints = typing.get_type_hints(cls, include_extras=True)
    for field in dataclasses.fields(cls):
        for name in field.metadata.get("first", ()):
            if name in values:
                values[field.name] = {name: values.pop(name)} | values.get(field.name, {})
    for name, value in values.items():
        kind, optional = _split(hints[name])
        if isinstance(value, dict):
            values[name] = _restore(kind, value)
        elif optional and value in (0, "") and value is not False:
            values[name] = None
    return values


def _make_field(
    hint: Any, default: Any, sentence: str, without: tuple[str, ...]
) -> tuple[Any, Any]:
    """Return a field for `create_model`: a type that Dagster can show, default and description."""
    kind, optional = _split(hint)
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        nested = make_form(kind, None if default is dataclasses.MISSING else default, without)
        complete = all(not field.is_required() for field in nested.model_fields.values())
        return nested, Field(default=nested() if complete else ..., description=sentence)
    if typing.get_origin(kind) is tuple:
        kind, default = list[typing.get_args(kind)[0]], list(default)  # type: ignore[misc]
    if optional:
        empty = 0 if kind in (int, float) else ""
        default = empty if default is None else default
        sentence = f"{sentence} ({empty!r} means none.)"
        if typing.get_origin(kind) is Literal:
            kind = Literal[(*typing.get_args(kind), "")]
    required = default is dataclasses.MISSING
    return kind, Field(default=... if required else default, description=sentence)


def _split(hint: Any) -> tuple[Any, bool]:
    """Return the type in `X | None`, without its bounds, and whether None is allowed.

    `Annotated[str, function]` becomes a Literal of the words that the function returns.
    """
    kind, optional = split_optional(hint)
    if typing.get_origin(kind) is typing.Annotated:
        kind, extra = typing.get_args(kind)[:2]
        if callable(extra):
            return Literal[tuple(extra())], False
    return kind, optional
