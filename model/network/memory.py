"""One clear error where torch or NumPy finds no memory."""

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
"""Parts of the messages of failed allocations: RuntimeErrors of torch, panics of safetensors,
SystemErrors of extensions."""


class OutOfMemoryError(UserError):
    """There is not enough memory, or the process may use no more of it."""


@contextmanager
def memory_errors(work: str, remedy: str) -> Iterator[None]:
    """Turn a failed allocation into an OutOfMemoryError: `work` says what needed the memory,
    `remedy` what to do.
    """
    try:
        yield
    except BaseException as error:  # a panic is no Exception
        plain = (
            isinstance(error, (RuntimeError, SystemError))
            or type(error).__name__ == "PanicException"
        )
        if not isinstance(error, MemoryError) and not (
            plain and any(sign in str(error).lower() for sign in SIGNS)
        ):
            raise
        raise OutOfMemoryError(f"{work} needs more memory than there is: {remedy}") from error
