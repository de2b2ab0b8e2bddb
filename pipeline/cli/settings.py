"""Parse a command's settings from text into its dataclass.

    a YAML file, `--set train.learning_rate=0.001`, `--minutes 5`
      -> {"train.learning_rate": "0.001", "train.minutes": "5"}
      -> Train(train=TrainConfig(learning_rate=0.001, minutes=5.0), ...)

A setting has a dotted key, such as `train.learning_rate`. Its last part is enough, here
`learning_rate`; if several keys match, the least nested one is used. A YAML file nests the same
keys, like Dagster's launchpad, and may contain settings of several commands (`SHARED`).
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
SHARED = frozenset({"preset", "ingest", "join", "train", "explore", "finetune", "rule", "match"})
"""Top-level YAML keys that are ignored by commands without such settings."""
UNSET_WORDS = ("", "none", "null", "~")
"""Values that unset an optional setting."""


class SettingError(UserError):
    """A setting is unknown, missing, or has a value of the wrong type."""


class Setting(NamedTuple):
    """A leaf field of a command's dataclass or of one nested in it."""

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
    def is_required(self) -> bool:
        """Return whether it must be given."""
        return self.default is dataclasses.MISSING

    @property
    def is_list(self) -> bool:
        """Return whether it is a list."""
        return get_origin(self.kind) is tuple

    @property
    def item(self) -> Any:
        """Return the type of its value, or of each value of a list."""
        return get_args(self.kind)[0] if self.is_list else self.kind

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
        if self.is_required:
            return "[required]"
        if self.default is None or self.default is False or self.default in ("", ()):
            return ""
        value = ",".join(map(str, self.default)) if self.is_list else self.default
        return f"[{'true' if value is True else value}]"


class GivenValue(NamedTuple):
    """A value (text or list of texts) and where it was given, for error messages."""

    value: Any
    place: str


def collect_settings(cls: type[Any], example: Any = None, prefix: str = "") -> dict[str, Setting]:
    """Return all settings of a dataclass and its nested dataclasses, by dotted key."""
    found: dict[str, Setting] = {}
    hints, texts = get_type_hints(cls), descriptions(cls)
    for field in list_fields(cls):
        (kind, optional), default = split_optional(hints[field.name]), find_default(field, example)
        key = f"{prefix}{field.name}"
        if isinstance(kind, type) and dataclasses.is_dataclass(kind):
            nested = None if default is dataclasses.MISSING else default
            found |= collect_settings(kind, nested, f"{key}.")
        else:
            text = " ".join(texts.get(field.name, "").split())
            found[key] = Setting(kind, optional, default, text, field.metadata.get("commas", True))
    return found


def list_fields(cls: type[Any]) -> "list[dataclasses.Field[Any]]":
    """Return the fields of a dataclass, its own before inherited ones."""
    fields = {field.name: field for field in dataclasses.fields(cls)}
    names = dict.fromkeys(name for base in cls.__mro__ for name in inspect.get_annotations(base))
    return [fields[name] for name in names if name in fields]


def descriptions(cls: type[Any]) -> dict[str, str]:
    """Return the docstring of each field of a dataclass, including inherited fields."""
    found: dict[str, str] = {}
    for base in filter(dataclasses.is_dataclass, reversed(cls.__mro__)):
        (body,) = ast.parse(textwrap.dedent(inspect.getsource(base))).body
        assert isinstance(body, ast.ClassDef)
        for field, text in itertools.pairwise(body.body):
            match field, text:
                case ast.AnnAssign(), ast.Expr(ast.Constant(str(words))):
                    found[ast.unparse(field.target)] = inspect.cleandoc(words)
    return found


def find_default(field: "dataclasses.Field[Any]", example: Any = None) -> Any:
    """Return a field's default, or that of `example`; `dataclasses.MISSING` if there is none."""
    if example is not None:
        return getattr(example, field.name)
    if field.default_factory is dataclasses.MISSING:
        return field.default
    return field.default_factory()


def split_optional(hint: Any) -> tuple[Any, bool]:
    """Return the type within `X | None`, and whether None is allowed."""
    if get_origin(hint) in (Union, types.UnionType):
        (inner,) = (item for item in get_args(hint) if item is not type(None))
        return inner, True
    return hint, False


def find_key(name: str, keys: Collection[str], place: str) -> str:
    """Return the key `name`, or the least nested key that ends in it. Raises SettingError."""
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
    """Return the end of an error about an unknown key: the closest key, or ""."""
    blocks = {key.rpartition(".")[0] for key in keys} - {""}
    ends = {
        ".".join(key.split(".")[start:]): key
        for key in (*keys, *blocks)
        for start in range(key.count(".") + 1)
    }
    near = get_close_matches(name, ends, n=1)
    return f"; did you mean {ends[near[0]]}?" if near else ""


def read_config(path: Path, known: Mapping[str, Setting]) -> dict[str, GivenValue]:
    """Read a YAML file into values by key. Raises SettingError for unknown keys."""
    import yaml

    try:
        # BaseLoader returns only texts, lists and mappings: `amp: off` stays "off", and no tag
        # creates an object.
        held = yaml.load(path.read_text(encoding="utf-8"), Loader=yaml.BaseLoader)  # noqa: S506
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise SettingError(f"{path}: not a YAML file: {' '.join(str(error).split())}") from error
    given = {}
    blocks = {key.partition(".")[0] for key in known}
    for name, value in flatten(held or {}):
        if not name or any(key.startswith(f"{name}.") for key in known):
            name = name or "the file"
            raise SettingError(f"{path}: {name} must hold settings (key: value), got {value!r:.60}")
        block = name.partition(".")[0]
        if block in blocks or block not in SHARED:
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


def read_assignment(text: str, known: Mapping[str, Setting]) -> tuple[str, GivenValue]:
    """Parse KEY=VALUE of `--set`."""
    name, equals, value = text.partition("=")
    if not equals:
        raise SettingError(f"--set takes KEY=VALUE, not {text!r}")
    return find_key(name.strip(), known, "--set"), GivenValue(value, f"--set {name.strip()}")


def split_list(text: str) -> list[str]:
    """Split `a,b` at commas, except in the path of an existing file or within NAME=VALUE."""
    with contextlib.suppress(OSError):  # the OS rejects very long names
        if text and Path(text).exists():
            return [text]
    words = [word for word in text.split(",") if word]
    return re.split(r",(?=[^,=]+=)", text) if "=" in "".join(words[:1]) else words


def build(cls: type[T], given: Mapping[str, GivenValue], known: Mapping[str, Setting]) -> T:
    """Build a command from its defaults and the given values. Raises UserError for bad ones."""
    from model.settings import validate

    values = {key: setting.default for key, setting in known.items()}
    values |= {key: _prepare(known[key], one) for key, one in given.items()}

    def place(key: str) -> str:
        """Return where a setting was given; the key of a list item ends in its index."""
        found = given.get(key) or given.get(key.rpartition(".")[0])
        return found.place if found else key

    return validate(cls, _nest(values), SettingError, place)


def _prepare(setting: Setting, given: GivenValue) -> Any:
    """Split lists, unset empty values, and reject addresses where a local path is required."""
    value = given.value
    if setting.optional and isinstance(value, str) and value.lower() in UNSET_WORDS:
        return None
    if setting.is_list and isinstance(value, str):
        value = split_list(value) if setting.commas else [value]
    addresses = [word for word in (value if setting.is_list else [value]) if "://" in str(word)]
    if setting.item is Path and addresses:  # a Path would turn it into a folder `s3:`
        found = f"not {addresses[0]}: copy the files to this machine first"
        raise SettingError(f"{given.place} must be a local path, {found}")
    return value


def _nest(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values by dotted key as nested dicts."""
    nested: dict[str, Any] = {}
    for key, value in values.items():
        *blocks, name = key.split(".")
        inner = nested
        for block in blocks:
            inner = inner.setdefault(block, {})
        if value is not dataclasses.MISSING:
            inner[name] = value
    return nested
