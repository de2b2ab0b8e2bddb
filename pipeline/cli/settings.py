"""Settings of a command: from text to its dataclass, with one sentence for each mistake.

    a YAML file, `--set train.learning_rate=0.001`, `--minutes 5`
      -> {"train.learning_rate": "0.001", "train.minutes": "5"}
      -> Train(train=TrainConfig(learning_rate=0.001, minutes=5.0), ...)

A setting has a dotted key, such as `train.learning_rate`. The end of a key suffices, here
`learning_rate`; where several keys end alike, the least nested one is meant. A YAML file nests the
same keys, as Dagster's launchpad does, and may hold settings of several commands (`SHARED`).
"""

import ast
import contextlib
import dataclasses
import inspect
import re
import textwrap
import types
from collections.abc import Collection, Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import (
    Any,
    Literal,
    NamedTuple,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

from engine.errors import UserError

T = TypeVar("T")
SHARED = frozenset({"preset", "ingest", "join", "train", "explore", "finetune", "rule", "match"})
"""Top-level keys that a YAML file may hold for other commands than the one that reads it."""
EMPTY = ("", "none", "null", "~")
"""Texts that unset an optional setting."""


class SettingError(UserError):
    """A setting that is unknown, missing, or has a value of the wrong type."""


class Setting(NamedTuple):
    """A field of a command, or of a dataclass nested in it, that is not itself a dataclass."""

    kind: Any
    """Its type, without `| None`."""
    optional: bool
    """Whether it may be None."""
    default: Any
    """Its default; `dataclasses.MISSING` if it is required."""
    text: str
    """Its description."""
    commas: bool = True
    """Whether commas separate the values of a list."""

    @property
    def required(self) -> bool:
        """Return whether it must be given."""
        return self.default is dataclasses.MISSING

    @property
    def several(self) -> bool:
        """Return whether it is a list."""
        return get_origin(self.kind) is tuple

    @property
    def item(self) -> Any:
        """Return the type of its value, or of each value of a list."""
        return get_args(self.kind)[0] if self.several else self.kind

    @property
    def choices(self) -> tuple[str, ...]:
        """Return the allowed words, () if any value is allowed."""
        return get_args(self.kind) if get_origin(self.kind) is Literal else ()

    @property
    def summary(self) -> str:
        """Return the first sentence of its description, which `--help` shows."""
        return self.text.partition(". ")[0].rstrip(".") + "."

    @property
    def shown_default(self) -> str:
        """Return the default in brackets, "" if it is empty."""
        if self.required:
            return "[required]"
        if self.default is None or self.default is False or self.default in ("", ()):
            return ""
        value = ",".join(map(str, self.default)) if self.several else self.default
        return f"[{'true' if value is True else value}]"


class Given(NamedTuple):
    """A value as text or as a list of texts, and where it was given, for error messages."""

    value: Any
    place: str


def settings_of(cls: type[Any], example: Any = None, prefix: str = "") -> dict[str, Setting]:
    """Return the settings of a dataclass by key, nested ones included."""
    found: dict[str, Setting] = {}
    hints, texts = get_type_hints(cls), descriptions(cls)
    for field in dataclasses.fields(cls):
        (kind, optional), default = split_optional(hints[field.name]), default_of(field, example)
        if dataclasses.is_dataclass(kind):
            within = None if default is dataclasses.MISSING else default
            found |= settings_of(cast("type[Any]", kind), within, f"{prefix}{field.name}.")
        else:
            text = " ".join(texts.get(field.name, "").split())
            commas = field.metadata.get("commas", True)
            found[f"{prefix}{field.name}"] = Setting(kind, optional, default, text, commas)
    return found


def descriptions(cls: type[Any]) -> dict[str, str]:
    """Return the docstring under each field of a dataclass by name, inherited fields included."""
    found: dict[str, str] = {}
    for base in filter(dataclasses.is_dataclass, reversed(cls.__mro__)):
        (body,) = ast.parse(textwrap.dedent(inspect.getsource(base))).body
        assert isinstance(body, ast.ClassDef)
        for field, text in zip(body.body, body.body[1:], strict=False):
            if (
                isinstance(field, ast.AnnAssign)
                and isinstance(text, ast.Expr)
                and isinstance(text.value, ast.Constant)
            ):
                found[ast.unparse(field.target)] = inspect.cleandoc(str(text.value.value))
    return found


def find_key(name: str, keys: Collection[str], place: str) -> str:
    """Return the key `name`, or the least nested key that ends in it; raise SettingError."""
    if name in keys:
        return name
    found = [key for key in keys if key.endswith(f".{name}")]
    found = [key for key in found if key.count(".") == min(other.count(".") for other in found)]
    if len(found) == 1:
        return found[0]
    if found:
        raise SettingError(f"{place}: {name} is ambiguous: use {' or '.join(found)}")
    raise SettingError(f"{place}: there is no setting {name!r}{_suggest(name, keys)}")


def _suggest(name: str, keys: Collection[str]) -> str:
    """Return the end of an error about an unknown key: the nearest key, if one is near."""
    blocks = {key.rpartition(".")[0] for key in keys} - {""}
    ends = {
        ".".join(key.split(".")[start:]): key
        for key in (*keys, *blocks)
        for start in range(key.count(".") + 1)
    }
    near = get_close_matches(name, ends, n=1)
    return f"; did you mean {ends[near[0]]}?" if near else ""


def read_config(path: Path, known: Mapping[str, Setting]) -> dict[str, Given]:
    """Read a YAML file into values by key; raises SettingError for a key that no command has."""
    import yaml

    try:
        # BaseLoader makes texts, lists and mappings only: `amp: off` stays the word "off", and no
        # tag creates an object.
        held = yaml.load(path.read_text(encoding="utf-8"), Loader=yaml.BaseLoader)  # noqa: S506
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise SettingError(f"{path}: not a YAML file: {' '.join(str(error).split())}") from error
    return dict(_flatten(held or {}, "", known, str(path)))


def read_assignment(text: str, known: Mapping[str, Setting]) -> tuple[str, Given]:
    """Read KEY=VALUE of `--set`."""
    name, equals, value = text.partition("=")
    if not equals:
        raise SettingError(f"--set takes KEY=VALUE, not {text!r}")
    return find_key(name.strip(), known, "--set"), Given(value, f"--set {name.strip()}")


def build(cls: type[T], given: Mapping[str, Given], known: Mapping[str, Setting]) -> T:
    """Build a command from values by key and its defaults.

    Raises SettingError for a value of the wrong type, and UserError for a value that the dataclass
    refuses.
    """
    values = {key: setting.default for key, setting in known.items()}
    values |= {key: _convert(known[key], one) for key, one in given.items()}
    return cast("T", _make(cls, values, ""))


def _flatten(
    held: Any, prefix: str, known: Mapping[str, Setting], path: str
) -> Iterable[tuple[str, Given]]:
    """Yield the values of a nested mapping by dotted key."""
    if not isinstance(held, Mapping):
        name = prefix.rstrip(".") or "the file"
        raise SettingError(f"{path}: {name} must hold settings (key: value), got {held!r:.60}")
    for name, value in held.items():
        key = f"{prefix}{name}"
        if key in known:
            yield key, Given(value, f"{path}: {key}")
        elif any(other.startswith(f"{key}.") for other in known):
            yield from _flatten(value, f"{key}.", known, path)
        elif prefix or key not in SHARED:
            raise SettingError(f"{path}: there is no setting {key!r}{_suggest(key, known)}")


def _convert(setting: Setting, given: Given) -> Any:
    """Convert a value to the setting's type."""
    from pydantic import TypeAdapter, ValidationError

    value = given.value
    if setting.optional and isinstance(value, str) and value.lower() in EMPTY:
        return None
    if setting.several and isinstance(value, str):
        value = split_list(value) if setting.commas else [value]
    addresses = [word for word in (value if setting.several else [value]) if "://" in str(word)]
    if setting.item is Path and addresses:  # as a Path it would name a folder `s3:`
        found = f"not {addresses[0]}: copy the files to this machine first"
        raise SettingError(f"{given.place} must be a local path, {found}")
    try:
        return TypeAdapter(setting.kind).validate_python(value)
    except ValidationError as error:
        wanted = error.errors()[0]["msg"].removeprefix("Input should be ").partition(",")[0]
        wanted = f"one of {', '.join(setting.choices)}" if setting.choices else wanted
        raise SettingError(f"{given.place} must be {wanted}, got {given.value!r:.100}") from None


def split_list(text: str) -> list[str]:
    """Split `a,b` at commas, except in the name of an existing file and within NAME=VALUE."""
    with contextlib.suppress(OSError):  # the system refuses very long names
        if text and Path(text).exists():
            return [text]
    words = [word for word in text.split(",") if word]
    return re.split(r",(?=[^,=]+=)", text) if "=" in "".join(words[:1]) else words


def _make(cls: type[Any], values: Mapping[str, Any], prefix: str) -> Any:
    """Build a dataclass, and those nested in it, from the values of all keys."""
    hints = get_type_hints(cls)
    return cls(
        **{
            field.name: _make(hints[field.name], values, f"{prefix}{field.name}.")
            if dataclasses.is_dataclass(hints[field.name])
            else values[f"{prefix}{field.name}"]
            for field in dataclasses.fields(cls)
        }
    )


def default_of(field: "dataclasses.Field[Any]", example: Any = None) -> Any:
    """Return a field's default, or that of `example`; `dataclasses.MISSING` if there is none."""
    if example is not None:
        return getattr(example, field.name)
    return (
        field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
    )


def split_optional(hint: Any) -> tuple[Any, bool]:
    """Return the type within `X | None`, and whether None is allowed."""
    if get_origin(hint) in (Union, types.UnionType):
        (inner,) = (item for item in get_args(hint) if item is not type(None))
        return inner, True
    return hint, False
