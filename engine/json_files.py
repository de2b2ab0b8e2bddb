"""Parse untrusted JSON files strictly and validate them against a schema.

Each error is one line that starts with the path. Schemas are pydantic models, defined where the
files are read (`pipeline/dataset/files/manifest.py`, `model/card.py`).
"""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.errors import UserError

if TYPE_CHECKING:
    from pydantic import BaseModel, ValidationError

MAX_JSON_BYTES = 64 << 20
"""Default size limit of a file, bytes."""
MAX_SHOWN_CHARS = 80
"""Maximum number of characters quoted from a file in an error message."""


def parse_json(data: bytes | str) -> Any:
    """Parse a JSON text; raise ValueError if it is not strict JSON in UTF-8.

    NaN, infinities, integers beyond 64 bits and more than 200 levels of nesting are errors: they
    would cause confusing errors later.
    """
    from pydantic_core import from_json

    value = from_json(data, allow_inf_nan=False)
    _check_numbers(value)
    return value


def _check_numbers(value: Any) -> None:
    if isinstance(value, (dict, list)):
        for item in value.values() if isinstance(value, dict) else value:
            _check_numbers(item)
    elif isinstance(value, float) and not math.isfinite(value):
        raise ValueError("a number is too large")
    elif isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
        raise ValueError("an integer has more than 64 bits")


def read_json(path: Path, refusal: type[UserError], *, largest: int = MAX_JSON_BYTES) -> Any:
    """Parse a JSON file of at most `largest` bytes, local or in an object store.

    Raises FileNotFoundError if there is no file, and `refusal` for any other error.
    """
    try:
        if path.stat().st_size > largest:
            raise refusal(f"{path} is larger than {largest >> 20} MiB, the limit for such a file")
        data = path.read_bytes()
    except FileNotFoundError:
        raise
    except OSError as error:
        raise refusal(f"{path} cannot be read: {error.strerror or error}") from error
    try:
        return parse_json(data)
    except ValueError as error:
        raise refusal(f"{path} is not JSON: {safe_text(str(error), 200, quote=False)}") from error


def validate_content(
    path: Path, value: Any, schema: "type[BaseModel]", refusal: type[UserError], hint: str = ""
) -> None:
    """Validate the content of `path`; raise `refusal` with the first error, followed by `hint`."""
    from pydantic import ValidationError

    try:
        schema.model_validate(value)
    except ValidationError as error:
        raise refusal(f"{path}: {first_error(error)}{hint}") from None


def first_error(error: "ValidationError") -> str:
    """Return a validation's first error as one line: field, reason, value."""
    found = error.errors(include_url=False, include_context=False)
    first = found[0]
    field = ".".join(map(str, first["loc"]))
    reason = first["msg"].removeprefix("Value error, ")
    reason = reason[:1].lower() + reason[1:]
    given, value = first["input"], ""
    is_short = given is None or isinstance(given, (str, int, float))
    if is_short and first["type"] not in ("missing", "value_error"):
        value = f", got {safe_text(given)}"
    more = f" ({len(found) - 1} more)" if len(found) > 1 else ""
    return safe_text(f"{field}: {reason}" if field else reason, 300, quote=False) + value + more


def safe_text(value: Any, most: int = MAX_SHOWN_CHARS, *, quote: bool = True) -> str:
    """Return an untrusted value as text of at most `most` characters that is safe to print."""
    text = repr(value)
    if not quote:
        text = "".join(char if char.isprintable() else "?" for char in str(value))
    return text if len(text) <= most else text[: most - 3] + "..."
