"""Launchpad forms, generated from the dataclasses that define the command line's options.

An asset annotates its parameter `config` with `Form[Options]`. The form has the settings that the
dataclass names in `form`, in that order, and the field `more` for the others, as YAML:

    minutes: 5.0
    preset: fianchetto-human
    more: {batch_size: 512, join: {hold_out: none}}

Dagster shows each field with its type, choices, default and description. `read_form(config)` builds
the dataclass, which validates all values. The launchpad hides fields that default to None
(dagster#31166), so None is shown as 0 or "".

Forms have no settings that name a program, an address or a file: these keep the dataclass's
default, or the assets set them from the environment (resources.py).
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

from pipeline.cli.settings import GivenValue, Setting, build, collect_settings, find_key, flatten

T = TypeVar("T")
HIDDEN = frozenset({"engine"})
"""Names of settings that contain a chess engine's command or a Ray cluster's address."""
REFERENCE = "/settings"
"""Page of the UI that lists all settings."""


def keep_order() -> None:
    """Make Dagster show a form's fields in declaration order.

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
    values = config.model_dump()
    more = values.pop("more", {})
    options: T = build_options(config.made_from, values, more)
    return options


@functools.cache
def make_form(cls: type[Any]) -> "type[Form[Any]]":
    """Generate the `dg.Config` class of a dataclass."""
    known = list_settings(cls)  # type: ignore[arg-type]
    hints = get_type_hints(cls, include_extras=True)
    keys = {name: find_key(name, known, cls.__name__) for name in cls.form}
    fields = {name: _make_field(known[key], hints.get(name)) for name, key in keys.items()}
    if others := [key for key in known if key not in keys.values()]:
        words = f"Other settings, such as {{{others[0].rpartition('.')[2]}: ...}}"
        text = f"{words}. {REFERENCE}#{cls.__name__} lists them."
        fields["more"] = (dict[str, Any], Field(default={}, description=text))
    create: Any = create_model
    made: type[Form[Any]] = create(cls.__name__, __base__=Form, __doc__=cls.__doc__, **fields)
    made.made_from = cls
    return made


@functools.cache
def list_settings(cls: type[Any]) -> dict[str, Setting]:
    """Return the settings of a form's dataclass by dotted key, without hidden ones."""
    return {
        key: setting
        for key, setting in collect_settings(cls).items()
        if key.rpartition(".")[2] not in HIDDEN and setting.item is not Path
    }


def build_options(
    cls: type[T], values: Mapping[str, Any], more: Mapping[str, Any] | None = None
) -> T:
    """Build the dataclass `cls` from a form's values, and from `more`, which has precedence.

    In `values`, 0 and "" unset an optional setting. Raises UserError for invalid values.
    """
    known = list_settings(cls)  # type: ignore[arg-type]
    given = dict[str, GivenValue]()
    for name, value in values.items():
        key = find_key(name, known, "form")
        is_empty = known[key].optional and value in (0, "") and value is not False
        given[key] = GivenValue(None if is_empty else value, name)
    for name, value in flatten(more or {}):
        given[find_key(name, known, "more")] = GivenValue(value, f"more: {name}")
    return build(cls, given, known)


def _make_field(setting: Setting, hint: Any) -> tuple[Any, Any]:
    """Return a field for `create_model`: a type that Dagster can show, default and description.

    `Annotated[str, function]` becomes a Literal of the words that the function returns.
    """
    kind, text = setting.kind, setting.text
    default: Any = setting.default
    if words := next(filter(callable, getattr(hint, "__metadata__", ())), None):
        kind = Literal[tuple(words())]  # type: ignore[arg-type]
    elif setting.is_list:
        kind, default = list[setting.item], list(default)  # type: ignore[name-defined]
    elif setting.optional:
        empty: Any = 0 if kind in (int, float) else ""
        default = empty if default is None else default
        text = f"{text} ({empty!r} means none.)"
        if get_origin(kind) is Literal:
            kind = Literal[(*get_args(kind), "")]
    return kind, Field(default=default, description=text)


def describe_settings(forms: Mapping[str, type[Any]]) -> str:
    """Return the page that lists all settings of forms by asset or job, as HTML."""
    parts = [PAGE_BEGIN]
    for title, cls in forms.items():
        parts.append(f'<h2 id="{cls.__name__}">{html.escape(title)}</h2><table>')
        for key, setting in list_settings(cls).items():  # type: ignore[arg-type]
            cells = (key, setting.shown_default.strip("[]"), setting.text)
            row = "".join(f"<td>{html.escape(cell)}</td>" for cell in cells)
            parts.append(f"<tr>{row}</tr>")
        parts.append("</table>")
    return "\n".join(parts)


PAGE_BEGIN = """<!doctype html><html lang="en"><meta charset="utf-8"><title>Settings</title>
<style>body {font: 14px/1.5 system-ui; max-width: 70em; margin: 2em auto; padding: 0 1em}
td {padding: .3em 1em .3em 0; vertical-align: top; border-top: 1px solid #ddd}
td:first-child {font-family: monospace} :target {background: #fff3c4}</style>
<h1>Settings</h1>
<p>Names, defaults and meanings of the settings in launchpad forms. A form has the most important
ones; the others go into its field <code>more</code>, such as <code>more: {batch_size: 512}</code>.
The last part of a name is enough. The command line has the same settings (<code>--set</code>).</p>
"""
