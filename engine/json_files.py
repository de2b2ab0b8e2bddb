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
MAX_QUOTED_CHARS = 80
"""Default limit of the number of characters that an error message quotes from a file."""


def parse_json(data: bytes | str) -> Any:
    """Parse a JSON text; raise ValueError if it is not strict JSON in UTF-8.

    Rejects NaN, infinities, integers beyond 64 bits, and more than 200 levels of nesting, which
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
        raise ValueError("a number is larger than a 64-bit float can hold")
    elif isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
        raise ValueError("an integer has more than 64 bits")


def read_json(path: Path, error_type: type[UserError], *, max_bytes: int = MAX_JSON_BYTES) -> Any:
    """Parse a JSON file, local or in an object store.

    Raises FileNotFoundError if there is no file, and `error_type` if it is unreadable, invalid or
    larger than `max_bytes`.
    """
    try:
        if path.stat().st_size > max_bytes:
            raise error_type(
                f"{path} is larger than {max_bytes >> 20} MiB, the limit for this file"
            )
        data = path.read_bytes()
    except FileNotFoundError:
        raise
    except OSError as error:
        raise error_type(f"{path} cannot be read: {error.strerror or error}") from error
    try:
        return parse_json(data)
    except ValueError as error:
        raise error_type(
            f"{path} is not JSON: {safe_text(str(error), 200, quote=False)}"
        ) from error


def validate_content(
    path: Path, value: Any, schema: "type[BaseModel]", error_type: type[UserError], hint: str = ""
) -> None:
    """Validate the content of `path`; raise `error_type` with the first error and then `hint`."""
    from pydantic import ValidationError

    try:
        schema.model_validate(value)
    except ValidationError as error:
        raise error_type(f"{path}: {first_error(error)}{hint}") from None


def first_error(error: "ValidationError") -> str:
    """Describe in one line the first error (field, reason, short value) and count the others."""
    errors = error.errors(include_url=False, include_context=False)
    first = errors[0]
    field = ".".join(map(str, first["loc"]))
    reason = first["msg"].removeprefix("Value error, ")
    reason = reason[:1].lower() + reason[1:]
    value, shown_value = first["input"], ""
    is_short = value is None or isinstance(value, (str, int, float))
    if is_short and first["type"] not in ("missing", "value_error"):
        shown_value = f", got {safe_text(value)}"
    more = f" ({len(errors) - 1} more)" if len(errors) > 1 else ""
    text = safe_text(f"{field}: {reason}" if field else reason, 300, quote=False)
    return text + shown_value + more


def safe_text(value: Any, max_chars: int = MAX_QUOTED_CHARS, *, quote: bool = True) -> str:
    """Return an untrusted value as printable text of at most `max_chars` characters."""
    text = repr(value)
    if not quote:
        text = "".join(char if char.isprintable() else "?" for char in str(value))
    return text if len(text) <= max_chars else text[: max_chars - 3] + "..."
