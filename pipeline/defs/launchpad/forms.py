"""Launchpad forms, generated from the dataclasses that define the command line's options.

An asset annotates its parameter `config` with `Form[Options]`. The form has the settings that the
dataclass lists in `form`, in that order, and the field `more` for all others, as YAML:

    minutes: 5.0
    preset: fianchetto-human
    more: {batch_size: 512, join: {hold_out: none}}

Dagster shows each field with its type, choices, default and description. `read_form(config)` builds
the dataclass, which validates all values. The launchpad hides fields that default to None
(dagster#31166), so None is shown as 0 or "".

Forms have no settings that name a program, a URL or a file, except `games` of `first_network`.
Other settings of this kind keep their default, or the environment sets them (resources.py).
"""

import dataclasses
import functools
import html
import json
from collections.abc import Mapping
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Generic,
    Literal,
    TypeVar,
    get_args,
    get_origin,
    get_type_hints,
)

import dagster as dg
from dagster._config import snap
from pydantic import Field, create_model

from pipeline.cli.settings import (
    GivenValue,
    Setting,
    build_settings,
    collect_settings,
    find_key,
    flatten,
)

T = TypeVar("T")
HIDDEN_SETTINGS = frozenset({"engine"})
"""Settings that no form has: they contain a chess engine's command or a Ray cluster's address."""
SETTINGS_PATH = "/settings"
"""Path of the UI's page that lists all settings."""


def keep_field_order() -> None:
    """Make Dagster show a form's fields in declaration order.

    Dagster sorts fields and defaults by name, and has no setting to change that. This patch depends
    on its internals: with a version that sorts elsewhere, forms would be sorted by name again.
    """

    def serialize_default(field: dg.Field) -> str:
        value = field.default_value
        return json.dumps(value) if isinstance(value, dict) else dg.serialize_value(value)

    snap_module: Any = snap
    snap_module._ct_name = lambda field: ""  # the key by which fields are sorted
    field_class: Any = dg.Field
    field_class.default_value_as_json_str = property(serialize_default)


class Form(dg.Config, Generic[T]):
    """Base class of forms; `Form[Options]` is the form of the dataclass `Options`."""

    if not TYPE_CHECKING:

        def __class_getitem__(cls, options):
            return make_form(options) if dataclasses.is_dataclass(options) else cls

    made_from: ClassVar[type[Any]]
    """The dataclass that the form was made from."""


def read_form(config: Form[T]) -> T:
    """Build the dataclass from a form's values. Raises UserError for invalid ones."""
    values = config.model_dump()
    more = values.pop("more", {})
    options: T = build_options(config.made_from, values, more)
    return options


@functools.cache
def make_form(cls: type[Any]) -> "type[Form[Any]]":
    """Generate the `dg.Config` class of a dataclass."""
    settings = list_settings(cls)  # type: ignore[arg-type]
    hints = get_type_hints(cls, include_extras=True)
    keys = {name: find_key(name, settings, cls.__name__) for name in cls.form}
    fields = {name: _make_field(settings[key], hints.get(name)) for name, key in keys.items()}
    if others := [key.rpartition(".")[2] for key in settings if key not in keys.values()]:
        text = f"Other settings, such as {{{others[0]}: ...}}. {SETTINGS_PATH}#{cls.__name__} "
        text += "lists them."
        fields["more"] = (dict[str, Any], Field(default={}, description=text))
    create: Any = create_model
    form: type[Form[Any]] = create(cls.__name__, __base__=Form, __doc__=cls.__doc__, **fields)
    form.made_from = cls
    return form


@functools.cache
def list_settings(cls: type[Any]) -> dict[str, Setting]:
    """Return the settings of a form's dataclass by dotted key, except programs, URLs and files."""
    return {
        key: setting
        for key, setting in collect_settings(cls).items()
        if key.rpartition(".")[2] not in HIDDEN_SETTINGS and setting.item_type is not Path
    }


def build_options(
    cls: type[T], values: Mapping[str, Any], more: Mapping[str, Any] | None = None
) -> T:
    """Build the dataclass `cls` from a form's values, and from `more`, which has precedence.

    In `values`, 0 and "" stand for None if the setting is optional. Raises UserError for invalid
    values.
    """
    settings = list_settings(cls)  # type: ignore[arg-type]
    given = dict[str, GivenValue]()
    for name, value in values.items():
        key = find_key(name, settings, "form")
        is_none = settings[key].is_optional and value in (0, "") and value is not False
        given[key] = GivenValue(None if is_none else value, name)
    for name, value in flatten(more or {}):
        given[find_key(name, settings, "more")] = GivenValue(value, f"more: {name}")
    return build_settings(cls, given, settings)


def _make_field(setting: Setting, hint: Any) -> tuple[Any, Any]:
    """Return a field for `create_model`: a type that Dagster can show, default and description.

    `Annotated[str, function]` becomes a Literal of the words that the function returns.
    """
    value_type, text = setting.value_type, setting.description
    default: Any = setting.default
    if list_words := next(filter(callable, getattr(hint, "__metadata__", ())), None):
        value_type = Literal[tuple(list_words())]  # type: ignore[arg-type]
    elif setting.is_list:
        value_type, default = list[setting.item_type], list(default)  # type: ignore[name-defined]
    elif setting.is_optional:
        empty: Any = 0 if value_type in (int, float) else ""
        default = empty if default is None else default
        text = f"{text} ({empty!r} leaves it unset.)"
        if get_origin(value_type) is Literal:
            value_type = Literal[(*get_args(value_type), "")]
    return value_type, Field(default=default, description=text)


def describe_settings(forms: Mapping[str, type[Any]]) -> str:
    """Return the page that lists the settings of all `forms` by asset, as HTML."""
    parts = [SETTINGS_PAGE_BEGIN]
    for title, cls in forms.items():
        parts.append(f'<h2 id="{cls.__name__}">{html.escape(title)}</h2><table>')
        for key, setting in list_settings(cls).items():  # type: ignore[arg-type]
            cells = (key, setting.shown_default.strip("[]"), setting.description)
            row = "".join(f"<td>{html.escape(cell)}</td>" for cell in cells)
            parts.append(f"<tr>{row}</tr>")
        parts.append("</table>")
    return "\n".join(parts)


SETTINGS_PAGE_BEGIN = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>Settings</title>
<style>body {font: 14px/1.5 system-ui; max-width: 70em; margin: 2em auto; padding: 0 1em}
td {padding: .3em 1em .3em 0; vertical-align: top; border-top: 1px solid #ddd}
td:first-child {font-family: monospace} :target {background: #fff3c4}</style>
<h1>Settings</h1>
<p>Names, defaults and meanings of the settings in launchpad forms. A form shows the most important
ones; write the others into its field <code>more</code>: <code>more: {batch_size: 512}</code>. The
last part of a name is enough. The command line has the same settings (<code>--set</code>).</p>
"""
