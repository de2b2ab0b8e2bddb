"""Compile kernels without reference counting, and with instructions that Numba lacks."""

from collections.abc import Callable
from typing import Any

from numba.extending import intrinsic

NO_REFCOUNT: dict[str, Any] = {"cache": True, "nogil": True, "_nrt": False}
"""Options for `@njit(**NO_REFCOUNT)`: compile a kernel without Numba's reference counting.

Reference counting costs two atomic operations for each array argument of each call, a third of the
time of replay. A kernel without it must not return an array or allocate one, directly or in a
kernel that it calls. Numba refuses to compile a kernel that allocates (even `child[:] = position`
does). `_nrt` is an undocumented option of Numba.
"""


def make_intrinsic(signature: Any, build: Callable[..., Any]) -> Any:
    """Return a function for compiled code that `build` translates to LLVM instructions.

    `signature` is a Numba signature of one or two arguments. `build(builder, *values)` gets an
    llvmlite IRBuilder and the arguments as LLVM values, and returns the result.
    """

    def emit(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        return build(builder, *values)

    def unary(typing_context: Any, value: Any) -> Any:
        return signature, emit

    def binary(typing_context: Any, first: Any, second: Any) -> Any:
        return signature, emit

    function: Any = intrinsic(unary if len(signature.args) == 1 else binary)
    return function
