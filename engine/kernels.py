"""How kernels are compiled that make no array: `@njit(**BORROWING)`.

Numba counts references to each array that is handed to a function: two atomic operations an array and call, which were half of
the time of replay (docs/log.md). A kernel that borrows its arrays from the caller needs no counts. It returns none of them.
Numba refuses to compile one that makes an array (copying a slice into another does: `child[:] = position`), or that calls
a kernel that does. `_nrt` is an option of Numba's own; a version without it would refuse it, and nothing else would change.
"""

from typing import Any

BORROWING: dict[str, Any] = {"cache": True, "nogil": True, "_nrt": False}
