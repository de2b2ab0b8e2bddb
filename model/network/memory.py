"""One clear error where torch or NumPy finds no memory."""

from collections.abc import Iterator
from contextlib import contextmanager

from engine.errors import UserError

SIGNS = ("can't allocate memory", "not enough memory", "out of memory", "bad_alloc", "can't start new thread")
"""Parts of the messages of torch's RuntimeErrors that mean so; on processors they have no class of their own."""


class OutOfMemoryError(UserError):
    """There is not enough memory, or the process may use no more of it."""


@contextmanager
def memory_errors(work: str, remedy: str) -> Iterator[None]:
    """Turn a failed allocation into an OutOfMemoryError: `work` says what needed the memory, `remedy` what to do."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not isinstance(error, MemoryError) and not any(sign in str(error).lower() for sign in SIGNS):
            raise
        raise OutOfMemoryError(f"{work} needs more memory than there is: {remedy}") from error
