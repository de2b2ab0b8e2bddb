"""Raise one clear error when torch or NumPy runs out of memory."""

from collections.abc import Iterator
from contextlib import contextmanager

from engine.errors import UserError

SIGNS = (
    "can't allocate memory",
    "not enough memory",
    "out of memory",
    "bad_alloc",
    "can't start new thread",
    "pyobject pointer is null",
    "error return without exception set",
)
"""Texts in the error messages of failed allocations in torch, safetensors and extensions."""


class OutOfMemoryError(UserError):
    """There is not enough memory, or the process has reached its limit."""


@contextmanager
def memory_errors(work: str, remedy: str) -> Iterator[None]:
    """Convert a failed allocation during `work` to an OutOfMemoryError with a `remedy`."""
    try:
        yield
    except BaseException as error:  # a Rust panic is not an Exception
        is_panic = type(error).__name__ == "PanicException"
        has_sign = any(sign in str(error).lower() for sign in SIGNS)
        is_plain = is_panic or isinstance(error, (RuntimeError, SystemError))
        if not isinstance(error, MemoryError) and not (is_plain and has_sign):
            raise
        raise OutOfMemoryError(f"not enough memory for {work}: {remedy}") from error
