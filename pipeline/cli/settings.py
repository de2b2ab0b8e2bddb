"""Parse the settings of a command from text into its dataclass.

    a YAML file, `--set train.learning_rate=0.001`, `--minutes 5`
      -> {"train.learning_rate": "0.001", "train.minutes": "5"}
      -> Train(train=TrainConfig(learning_rate=0.001, minutes=5.0), ...)

A setting has a dotted key, such as `train.learning_rate`. Its last part is enough, here
`learning_rate`; if several keys match, the least nested one is used. A YAML file nests the same
keys, as Dagster's launchpad does, and may have settings of several commands (`SHARED_BLOCKS`).
"""

import ast
import contextlib
import dataclasses
import inspect
import itertools
import re
import textwrap
import types
from collections.abc import Collection, Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints

from engine.errors import UserError

T = TypeVar("T")
SHARED_BLOCKS = ("preset", "ingest", "join", "train", "explore", "finetune", "rule", "match")
"""Top-level keys of YAML files that commands without such settings ignore."""
UNSET_WORDS = ("", "none", "null", "~")
"""Values that set an optional setting to None."""


class SettingError(UserError):
    """A setting is unknown or missing, or its value has the wrong type."""


class Setting(NamedTuple):
    """A field of a command's dataclass, or of a dataclass nested in it."""

    value_type: Any
    """Type of the value, without `| None`."""
    is_optional: bool
    """Whether the value may be None."""
    default: Any
    """Default value; `dataclasses.MISSING` if the setting is required."""
    description: str
    splits_commas: bool = True
    """Whether commas separate the values of a list."""

    @property
    def is_required(self) -> bool:
        """Whether the setting has no default."""
        return self.default is dataclasses.MISSING

    @property
    def is_list(self) -> bool:
        """Whether the setting takes several values."""
        return get_origin(self.value_type) is tuple

    @property
    def item_type(self) -> Any:
        """Type of the value, or of each item if it is a list."""
        return get_args(self.value_type)[0] if self.is_list else self.value_type

    @property
    def choices(self) -> tuple[str, ...]:
        """Allowed words; () if any value of the type is allowed."""
        return get_args(self.value_type) if get_origin(self.value_type) is Literal else ()

    @property
    def summary(self) -> str:
        """First sentence of the description, which `--help` shows."""
        return self.description.partition(". ")[0].rstrip(".") + "."

    @property
    def shown_default(self) -> str:
        """Default in brackets, or `[required]`; "" if the default is None, False or empty."""
        if self.is_required:
            return "[required]"
        if self.default is None or self.default is False or self.default in ("", ()):
            return ""
        value = ",".join(map(str, self.default)) if self.is_list else self.default
        return f"[{'true' if value is True else value}]"


class GivenValue(NamedTuple):
    """A value before its conversion, usually text, and where it was given, for error messages."""

    value: Any
    origin: str


def collect_settings(cls: type[Any], instance: Any = None, prefix: str = "") -> dict[str, Setting]:
    """Return all settings of a dataclass and its nested dataclasses, by dotted key.

    The attributes of `instance`, if given, replace the defaults of the fields.
    """
    found: dict[str, Setting] = {}
    hints, docstrings = get_type_hints(cls), read_field_docstrings(cls)
    for field in list_fields(cls):
        value_type, is_optional = split_optional(hints[field.name])
        default, key = find_default(field, instance), f"{prefix}{field.name}"
        if isinstance(value_type, type) and dataclasses.is_dataclass(value_type):
            nested = None if default is dataclasses.MISSING else default
            found |= collect_settings(value_type, nested, f"{key}.")
        else:
            text = " ".join(docstrings.get(field.name, "").split())
            commas = field.metadata.get("commas", True)
            found[key] = Setting(value_type, is_optional, default, text, commas)
    return found


def list_fields(cls: type[Any]) -> "list[dataclasses.Field[Any]]":
    """Return the fields of a dataclass: those of the class itself first, then inherited ones."""
    fields = {field.name: field for field in dataclasses.fields(cls)}
    names = dict.fromkeys(name for base in cls.__mro__ for name in inspect.get_annotations(base))
    return [fields[name] for name in names if name in fields]


def read_field_docstrings(cls: type[Any]) -> dict[str, str]:
    """Return the docstring of each field of a dataclass, including inherited fields."""
    found: dict[str, str] = {}
    for base in filter(dataclasses.is_dataclass, reversed(cls.__mro__)):
        (definition,) = ast.parse(textwrap.dedent(inspect.getsource(base))).body
        assert isinstance(definition, ast.ClassDef)
        for statement, following in itertools.pairwise(definition.body):
            match statement, following:
                case ast.AnnAssign(), ast.Expr(ast.Constant(str(docstring))):
                    found[ast.unparse(statement.target)] = inspect.cleandoc(docstring)
    return found


def find_default(field: "dataclasses.Field[Any]", instance: Any = None) -> Any:
    """Return a field's value in `instance`, or its default, which may be `dataclasses.MISSING`."""
    if instance is not None:
        return getattr(instance, field.name)
    if field.default_factory is dataclasses.MISSING:
        return field.default
    return field.default_factory()


def split_optional(hint: Any) -> tuple[Any, bool]:
    """Return the type within `X | None`, and whether None is allowed."""
    if get_origin(hint) in (Union, types.UnionType):
        (inner,) = (item for item in get_args(hint) if item is not type(None))
        return inner, True
    return hint, False


def find_key(name: str, keys: Collection[str], origin: str) -> str:
    """Return the key `name`, or the least nested key that ends in it. Raises SettingError."""
    if name in keys:
        return name
    found = [key for key in keys if key.endswith(f".{name}")]
    found = [key for key in found if key.count(".") == min(other.count(".") for other in found)]
    if len(found) == 1:
        return found[0]
    if found:
        raise SettingError(f"{origin}: {name} is ambiguous: use {' or '.join(found)}")
    raise SettingError(f"{origin}: there is no setting {name!r}{_suggest_key(name, keys)}")


def _suggest_key(name: str, keys: Collection[str]) -> str:
    """Return "; did you mean KEY?" with the closest key, or "" if none is close."""
    blocks = {key.rpartition(".")[0] for key in keys} - {""}
    ends = {
        ".".join(key.split(".")[start:]): key
        for key in (*keys, *blocks)
        for start in range(key.count(".") + 1)
    }
    near = get_close_matches(name, ends, n=1)
    return f"; did you mean {ends[near[0]]}?" if near else ""


def read_config(path: Path, known: Mapping[str, Setting]) -> dict[str, GivenValue]:
    """Read a YAML file into values by key. Raises SettingError for bad YAML and unknown keys."""
    import yaml

    try:
        # BaseLoader returns only texts, lists and mappings, so `amp: off` stays "off", and tags
        # cannot create objects.
        content = yaml.load(path.read_text(encoding="utf-8"), Loader=yaml.BaseLoader)  # noqa: S506
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise SettingError(f"{path}: not a YAML file: {' '.join(str(error).split())}") from error
    given = {}
    blocks = {key.partition(".")[0] for key in known}
    for name, value in flatten(content or {}):
        if not name or any(key.startswith(f"{name}.") for key in known):
            name = name or "the file"
            raise SettingError(
                f"{path}: {name} must contain settings (key: value), got {value!r:.60}"
            )
        block = name.partition(".")[0]
        if block in blocks or block not in SHARED_BLOCKS:
            key = find_key(name, known, str(path))
            if key in given:
                raise SettingError(f"{path}: {key} is set twice")
            given[key] = GivenValue(value, f"{path}: {key}")
    return given


def flatten(values: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the dotted keys and values of nested mappings."""
    if isinstance(values, Mapping):
        for name, value in values.items():
            yield from flatten(value, f"{prefix}.{name}".lstrip("."))
    else:
        yield prefix, values


def parse_assignment(text: str, known: Mapping[str, Setting]) -> tuple[str, GivenValue]:
    """Return the full key and the value of `--set KEY=VALUE`. Raises SettingError."""
    name, equals, value = text.partition("=")
    if not equals:
        raise SettingError(f"--set needs KEY=VALUE, got {text!r}")
    return find_key(name.strip(), known, "--set"), GivenValue(value, f"--set {name.strip()}")


def split_list(text: str) -> list[str]:
    """Split `a,b` at commas, except in the path of an existing file or within NAME=VALUE."""
    with contextlib.suppress(OSError):  # the OS rejects very long names
        if text and Path(text).exists():
            return [text]
    words = [word for word in text.split(",") if word]
    return re.split(r",(?=[^,=]+=)", text) if "=" in "".join(words[:1]) else words


def build_settings(
    cls: type[T], given: Mapping[str, GivenValue], known: Mapping[str, Setting]
) -> T:
    """Build a dataclass from its defaults and the given values. Raises UserError for bad ones."""
    from model.settings import validate

    values = {key: setting.default for key, setting in known.items()}
    values |= {key: _prepare_value(known[key], value) for key, value in given.items()}

    def find_origin(key: str) -> str:
        """Return where a setting was given; the key of a list item ends in its index."""
        found = given.get(key) or given.get(key.rpartition(".")[0])
        return found.origin if found else key

    return validate(cls, _nest_values(values), SettingError, find_origin)


def _prepare_value(setting: Setting, given: GivenValue) -> Any:
    """Split lists, turn UNSET_WORDS into None, and reject URLs where a local path is required."""
    value = given.value
    if setting.is_optional and isinstance(value, str) and value.lower() in UNSET_WORDS:
        return None
    if setting.is_list and isinstance(value, str):
        value = split_list(value) if setting.splits_commas else [value]
    urls = [word for word in (value if setting.is_list else [value]) if "://" in str(word)]
    if setting.item_type is Path and urls:  # Path("s3://x") would be a folder named `s3:`
        hint = "copy the files to this machine first"
        raise SettingError(f"{given.origin} must be a local path, not {urls[0]}: {hint}")
    return value


def _nest_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """Turn values by dotted key into nested dicts; leave out `dataclasses.MISSING`."""
    nested: dict[str, Any] = {}
    for key, value in values.items():
        *blocks, name = key.split(".")
        inner = nested
        for block in blocks:
            inner = inner.setdefault(block, {})
        if value is not dataclasses.MISSING:
            inner[name] = value
    return nested
