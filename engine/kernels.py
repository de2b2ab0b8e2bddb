"""`@njit(**BORROWING)` compiles kernels that allocate no array, without Numba's reference counts.

Counting costs two atomic operations for each array argument of each call: a third of the time of
replay. Such a kernel must not return its arrays. Numba refuses to compile one that allocates
(`child[:] = position` does), or that calls a kernel that does. `_nrt` is an undocumented option of
Numba.
"""

from typing import Any

BORROWING: dict[str, Any] = {"cache": True, "nogil": True, "_nrt": False}
