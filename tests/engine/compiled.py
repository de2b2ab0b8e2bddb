"""Look into compiled kernels for unsigned boards that Numba made signed or floating.

Numba gives `uint64 + int64`, `|`, `*` ... the type int64, so that a later `>>` drags the sign bit
along; and where two branches or the arguments of `max` meet, float64, which drops low bits.
"""

from types import ModuleType
from typing import Any

from numba import njit, types
from numba.core.compiler import CompilerBase, DefaultPassBuilder
from numba.core.compiler_machinery import AnalysisPass, register_pass
from numba.core.dispatcher import Dispatcher
from numba.core.typed_passes import AnnotateTypes


class _TypedError(BaseException):
    """Carries (typemap, calltypes) out of the compiler, which mends or wraps every Exception."""


@register_pass(mutates_CFG=False, analysis_only=True)
class _Stop(AnalysisPass):
    _name = "stop_with_types"

    def __init__(self) -> None:
        super().__init__()

    def run_pass(self, state: Any) -> bool:
        raise _TypedError(state.typemap, state.calltypes)


class _TypesOnly(CompilerBase):
    """Numba's compiler as far as the types of a function are known, which `type_annotation` shows:
    before LLVM."""

    def define_pipelines(self) -> list[Any]:
        passes = DefaultPassBuilder.define_nopython_pipeline(self.state)
        passes.add_pass_after(_Stop, AnnotateTypes)
        passes.finalize()
        return [passes]


def kernels(*modules: ModuleType) -> dict[str, Dispatcher]:
    """Give the Numba functions that these modules define, by `module.name`."""
    return {
        f"{module.__name__}.{name}": value
        for module in modules
        for name, value in vars(module).items()
        if isinstance(value, Dispatcher) and value.py_func.__module__ == module.__name__
    }


def not_unsigned(kernel: Dispatcher, signature: tuple[types.Type, ...]) -> list[str]:
    """List what is a float, or a signed result of mixed operands, when `kernel` is compiled for
    `signature`.

    Its types are inferred afresh, since what comes from Numba's cache has lost them, and no machine
    code is made; functions that it inlines are seen as part of it, and functions that it calls get
    their signatures as a side effect.
    """
    try:
        njit(kernel.py_func, pipeline_class=_TypesOnly).compile(signature)
    except _TypedError as typed:
        typemap, calltypes = typed.args
    found = [
        f"variable {name} is {kind}"
        for name, kind in typemap.items()
        if "float" in str(kind) or "complex" in str(kind)
    ]
    for expression, call in calltypes.items():
        operands = [kind for kind in getattr(call, "args", ()) if isinstance(kind, types.Integer)]
        mixed = len({kind.signed for kind in operands}) == 2
        signed = (
            isinstance(call.return_type, types.Integer) and call.return_type.signed
            if mixed
            else False
        )
        if signed and getattr(expression, "op", "") in ("binop", "inplace_binop"):
            found.append(f"{expression} of {', '.join(map(str, operands))} is {call.return_type}")
    return sorted(found)
