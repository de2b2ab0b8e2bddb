"""JSON files from unknown sources: parsed strictly and checked against a schema; an error is one line naming the file.

Python's own parser accepts NaN, the last of two equal keys, any depth and any size of number, which cause errors far from
the file. Schemas are pydantic models, which stand where their files do (`pipeline/dataset/files/schemas.py`,
`model/card.py`).
"""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.errors import UserError

if TYPE_CHECKING:
    from pydantic import BaseModel, ValidationError

LARGEST = 64 << 20
"""Largest file that is read by default, bytes."""
DEEPEST = 200
"""Deepest nesting; a card with a chain of twenty trainings has sixty levels."""
SHOWN = 80
"""Characters of a file's own text in an error message."""


def parse_json(data: bytes | str) -> Any:
    """Return the value of a JSON text; raise ValueError, with a short reason, for one that is not strict JSON in UTF-8.

    Also refused: equal keys, NaN and infinities, integers beyond 64 bits, DEEPEST, and halves of surrogate pairs.
    """
    try:
        text = data if isinstance(data, str) else data.decode("utf-8")
        value = json.loads(text, object_pairs_hook=_object, parse_constant=_constant)
    except RecursionError:
        raise ValueError(f"nested deeper than {DEEPEST}") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"byte {error.start} is not UTF-8") from None
    _check_values(value)
    return value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {shown(twice)} stands twice in one object")
    return found


def _constant(name: str) -> float:
    raise ValueError(f"{name} is no number of JSON")


def _check_values(value: Any) -> None:
    """Raise ValueError for a value that JSON's grammar allows and nothing of ours can hold; without recursion."""
    stack = [(value, 1)]
    while stack:
        one, depth = stack.pop()
        if isinstance(one, (dict, list)):
            if depth > DEEPEST:
                raise ValueError(f"nested deeper than {DEEPEST}")
            if isinstance(one, dict):
                stack += [(name, depth) for name in one]
                stack += [(item, depth + 1) for item in one.values()]
            else:
                stack += [(item, depth + 1) for item in one]
        elif isinstance(one, str):
            if not one.isascii():
                _check_text(one)
        elif isinstance(one, float):
            if not math.isfinite(one):
                raise ValueError("a number is too large")
        elif isinstance(one, int) and not -(1 << 63) <= one < 1 << 63:
            raise ValueError("an integer has more than 64 bits")


def _check_text(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("a text holds half of a surrogate pair") from None


def read_json(path: Path, refusal: type[UserError], *, largest: int = LARGEST) -> Any:
    """Return the value of a JSON file, or raise `refusal`; FileNotFoundError passes.

    `path` may be of a store. Nothing of a file larger than `largest` bytes is read.
    """
    try:
        if path.stat().st_size > largest:
            raise refusal(f"{path} is too large: over {largest >> 20} MiB, which no file of this project is")
        data = path.read_bytes()
    except FileNotFoundError:
        raise
    except OSError as error:
        raise refusal(f"{path} cannot be read: {error.strerror or error}") from error
    try:
        return parse_json(data)
    except ValueError as error:
        raise refusal(f"{path} is not JSON: {shown(str(error), 200)}") from error


def check(path: Path, value: Any, schema: "type[BaseModel]", refusal: type[UserError], hint: str = "") -> None:
    """Check the value of `path` against a schema, or raise `refusal` with the first error; `hint` says what to do."""
    from pydantic import ValidationError

    try:
        schema.model_validate(value)
    except ValidationError as error:
        raise refusal(f"{path}: {first_error(error)}{hint}") from None


def first_error(error: "ValidationError") -> str:
    """Return the first error of a validation in one line."""
    found = error.errors(include_url=False, include_context=False)
    first = found[0]
    field = _field(first["loc"])
    reason = first["msg"].removeprefix("Value error, ")
    reason = reason[:1].lower() + reason[1:]
    given = first["input"]
    value = f", and is {shown(given)}" if first["type"] not in ("missing", "value_error") and _short(given) else ""
    more = f" ({len(found) - 1} more)" if len(found) > 1 else ""
    return shown(f"{field}: {reason}" if field else reason, 300, quote=False) + value + more


def _short(value: Any) -> bool:
    return value is None or isinstance(value, (str, int, float))


def _field(place: Sequence[str | int]) -> str:
    """Return the path of a field: files[3].rows."""
    name = ""
    for part in place:
        name += f"[{part}]" if isinstance(part, int) else f".{part}" if name else str(part)
    return name


def shown(value: Any, most: int = SHOWN, *, quote: bool = True) -> str:
    """Return an untrusted value as text for one line of a terminal: shortened, and without control characters."""
    text = repr(value) if quote else "".join(char if char.isprintable() else "?" for char in str(value))
    return text if len(text) <= most else text[: most - 3] + "..."
