"""Options for `@njit(**BORROWING)`: compile a kernel without Numba's reference counting.

Reference counting costs two atomic operations for each array argument of each call, a third of the
time of replay. A kernel without it must not return an array or allocate one, directly or in a
kernel that it calls. Numba refuses to compile a kernel that allocates (even `child[:] = position`
does). `_nrt` is an undocumented option of Numba.
"""

from typing import Any

BORROWING: dict[str, Any] = {"cache": True, "nogil": True, "_nrt": False}
