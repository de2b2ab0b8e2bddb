"""Settings: frozen dataclasses that pydantic validates against their types and bounds.

    @settings(ConfigError)
    class PositionFilter:
        min_ply: Count = 0
        \"\"\"First half-move that counts.\"\"\"

The command line, YAML files and Dagster's launchpad are generated from these classes
(pipeline/cli/settings.py, pipeline/defs/launchpad/forms.py). A field's type contains its bounds,
and the docstring below a field is its help text. List the most important fields first.
"""

from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Annotated, Any, TypeVar, cast, dataclass_transform

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from engine.errors import UserError

T = TypeVar("T")
Count = Annotated[int, Field(ge=0)]
Positive = Annotated[int, Field(ge=1)]
NonNegative = Annotated[float, Field(ge=0)]
Share = Annotated[float, Field(ge=0, le=1)]


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field,))
def settings(error_type: type[UserError]) -> Callable[[type[T]], type[T]]:
    """Return a decorator for dataclasses of settings; invalid values raise `error_type`."""

    def decorate(cls: type[T]) -> type[T]:
        checks = ConfigDict(allow_inf_nan=False, extra="forbid", strict=True)
        validated: Any = dataclass(cls, frozen=True, kw_only=True, slots=True, config=checks)
        pydantic_init = validated.__init__

        def init(self: Any, **values: Any) -> None:
            tuples = {name: tuple(value) for name, value in values.items() if type(value) is list}
            try:
                pydantic_init(self, **values | tuples)
            except ValidationError as error:
                raise find_user_error(error) or error_type(describe_first_error(error)) from None

        validated.__init__ = init
        return cast("type[T]", validated)

    return decorate


def validate(
    cls: type[T],
    values: Mapping[str, Any],
    error_type: type[UserError] = UserError,
    format_name: Callable[[str], str] = str,
) -> T:
    """Build a settings dataclass, with any nested ones, from strings and other values.

    Raises `error_type` for a value that has the wrong type or is out of bounds. The message shows
    the setting as `format_name(dotted_key)`. The classes' own checks raise their own errors.
    """
    try:
        return TypeAdapter(cls).validate_python(values, strict=False)
    except ValidationError as error:
        message = describe_first_error(error, format_name)
        raise find_user_error(error) or error_type(message) from None


def find_user_error(error: ValidationError) -> UserError | None:
    """Return the UserError that a class's own check raised; None if a type or bound failed."""
    raised = error.errors()[0].get("ctx", {}).get("error")
    return raised if isinstance(raised, UserError) else None


def describe_first_error(error: ValidationError, format_name: Callable[[str], str] = str) -> str:
    """Describe the first error in a sentence: the setting, what is allowed, and what was given."""
    first = error.errors()[0]
    name = format_name(".".join(map(str, first["loc"])))
    if first["type"] in ("unexpected_keyword_argument", "missing"):
        return f"{name}: {first['msg'].lower()}"
    wanted = first["msg"].removeprefix("Input should be ").partition(", unable")[0]
    wanted = wanted.replace("Tuple should have", "a list of").partition(" after validation")[0]
    wanted = wanted.replace("greater than or equal to", "at least")
    wanted = wanted.replace("less than or equal to", "at most")
    return f"{name} must be {wanted}, got {first['input']!r:.100}"
