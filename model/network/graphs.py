"""Run a function of tensors as CUDA graphs: one launch instead of thousands of kernels.

A graph replays its kernels on the addresses of its capture. So the inputs are copied into static
tensors, and each new set of shapes is captured once. The function must not read a tensor back to
the host, must not depend on values that are not in tensors, and must draw no random numbers.

On a CPU the same copies are made and the function is called, so that tests need no GPU.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.errors import UserError

Inputs = Sequence[Mapping[str, Tensor]]
Outputs = tuple[Tensor, ...]

WARM_UP = 3
"""Calls before the first capture, at least one of them with its shapes: libraries allocate and load
kernels in them, which a graph must not contain."""
MAX_GRAPHS = 32
"""Maximum number of graphs of a function; the one that was used least recently is dropped."""


class GraphError(UserError):
    """A function cannot be captured as a CUDA graph."""


@dataclass(frozen=True, slots=True)
class _Captured:
    """The tensors that a graph reads and writes."""

    inputs: Inputs
    outputs: Outputs
    graph: torch.cuda.CUDAGraph | None


class Graphs:
    """A function of tensors, captured once for each set of shapes.

    The outputs are overwritten by the next call, and calls must not overlap. The first calls, and
    all captures, use the same stream: gradients are then accumulated on the stream that is
    captured, and libraries have their workspaces for it.
    """

    def __init__(
        self, function: Callable[[Inputs], Outputs], device: torch.device, remedy: str
    ) -> None:
        """Capture nothing yet; `remedy` tells the user what to do if capturing fails."""
        self.function, self.remedy = function, remedy
        self.captured: OrderedDict[Hashable, _Captured] = OrderedDict()
        self.warm_up = WARM_UP
        self.seen: set[Hashable] = set()
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        self.pool = torch.cuda.graph_pool_handle() if device.type == "cuda" else None

    def __call__(self, inputs: Inputs) -> Outputs:
        """Call the function; raises GraphError."""
        key = _shapes(inputs)
        if self.warm_up or key not in self.seen:
            self.warm_up = max(0, self.warm_up - 1)
            self.seen.add(key)
            return self._call_on_stream(inputs)
        if key not in self.captured:
            self.captured[key] = self._capture(inputs)  # waits until no graph runs
            if len(self.captured) > MAX_GRAPHS:
                self.captured.popitem(last=False)
        self.captured.move_to_end(key)
        found = self.captured[key]
        for mine, columns in zip(found.inputs, inputs, strict=True):
            torch._foreach_copy_(list(mine.values()), list(columns.values()))
        if found.graph is None:
            return self.function(found.inputs)
        found.graph.replay()
        return found.outputs

    def _call_on_stream(self, inputs: Inputs) -> Outputs:
        if self.stream is None:
            return self.function(inputs)
        here = torch.cuda.current_stream(self.stream.device)
        self.stream.wait_stream(here)
        with torch.cuda.stream(self.stream):
            outputs = self.function(inputs)
        here.wait_stream(self.stream)
        return outputs

    def _capture(self, inputs: Inputs) -> _Captured:
        mine = [{name: column.clone() for name, column in columns.items()} for columns in inputs]
        if self.stream is None:
            return _Captured(mine, (), None)
        graph = torch.cuda.CUDAGraph()
        # other threads copy batches during capture, which the default mode treats as an error
        capture = torch.cuda.graph(
            graph, pool=self.pool, stream=self.stream, capture_error_mode="thread_local"
        )
        try:
            with capture:
                outputs = self.function(mine)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            reason = str(error).partition("\n")[0]
            raise GraphError(
                f"CUDA could not capture a graph: {reason}", remedy=self.remedy
            ) from error
        return _Captured(mine, outputs, graph)


def _shapes(inputs: Inputs) -> Hashable:
    return tuple(
        tuple((name, column.shape, column.dtype) for name, column in columns.items())
        for columns in inputs
    )
