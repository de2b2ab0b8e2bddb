"""Look into compiled kernels for unsigned boards that Numba made signed or floating.

Numba gives `uint64 + int64`, `|`, `*` ... the type int64, so that a later `>>` drags the sign bit along; and where two
branches or the arguments of `max` meet, float64, which drops low bits.
"""

from types import ModuleType

from numba import njit, types
from numba.core.dispatcher import Dispatcher


def kernels(*modules: ModuleType) -> dict[str, Dispatcher]:
    """Give the Numba functions that these modules define, by `module.name`."""
    return {
        f"{module.__name__}.{name}": value
        for module in modules
        for name, value in vars(module).items()
        if isinstance(value, Dispatcher) and value.py_func.__module__ == module.__name__
    }


def not_unsigned(kernel: Dispatcher, signature: tuple[types.Type, ...]) -> list[str]:
    """List what is a float, or a signed result of mixed operands, when `kernel` is compiled for `signature`.

    It is compiled afresh, since what comes from Numba's cache has lost its types; functions that it inlines are seen as
    part of it, and functions that it calls get their signatures as a side effect.
    """
    fresh = njit(kernel.py_func)
    fresh.compile(signature)
    annotation = fresh.overloads[signature].type_annotation
    found = [
        f"variable {name} is {kind}"
        for name, kind in annotation.typemap.items()
        if "float" in str(kind) or "complex" in str(kind)
    ]
    for expression, call in annotation.calltypes.items():
        operands = [kind for kind in getattr(call, "args", ()) if isinstance(kind, types.Integer)]
        mixed = len({kind.signed for kind in operands}) == 2
        signed = isinstance(call.return_type, types.Integer) and call.return_type.signed if mixed else False
        if signed and getattr(expression, "op", "") in ("binop", "inplace_binop"):
            found.append(f"{expression} of {', '.join(map(str, operands))} is {call.return_type}")
    return sorted(found)
