"""Run a function of tensors as CUDA graphs: one launch instead of thousands of kernels.

A graph replays its kernels on the addresses of its capture. So the inputs are copied into static
tensors, and each new set of shapes is captured once. The function must not read a tensor back to
the host, must not depend on values that are not in tensors, must change its state in place, and
must draw no random numbers.

On a CPU the same copies are made and the function is called, so that tests need no GPU.
"""

import logging
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from threading import Lock, get_ident

import torch
from torch import Tensor

LOG = logging.getLogger(__name__)

Inputs = Sequence[Mapping[str, Tensor]]
Outputs = tuple[Tensor, ...]

MAX_GRAPHS = 32
"""Maximum number of graphs of a function; the least recently used one is dropped."""
CAPTURE_LOCK = Lock()
"""Held during a capture. Another capture would begin by waiting for the whole GPU, which would
invalidate the first one."""


@dataclass(frozen=True, slots=True)
class _Captured:
    inputs: Inputs
    outputs: Outputs
    graph: torch.cuda.CUDAGraph | None


class Graphs:
    """A function of tensors, captured once for each set of shapes.

    The outputs are overwritten by the next call, and calls must not overlap. The first call with a
    set of shapes on a thread is not captured, because libraries then load kernels, allocate
    workspaces and create the thread's handles, which a capture must not contain (pytorch#99397). If
    a capture fails, the function is no longer captured.
    """

    def __init__(self, function: Callable[[Inputs], Outputs], device: torch.device) -> None:
        self.function, self.device = function, device
        self.captured: OrderedDict[Hashable, _Captured] = OrderedDict()
        self.seen: set[Hashable] = set()
        self.has_failed = False
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        self.pool = torch.cuda.graph_pool_handle() if device.type == "cuda" else None

    def __call__(self, inputs: Inputs) -> Outputs:
        """Call the function, or replay its graph for these shapes."""
        key = _shapes(inputs)
        if key not in self.captured:
            call = get_ident(), key
            if self.has_failed or call not in self.seen:
                self.seen.add(call)
                return self._call_on_stream(inputs)
            try:
                self.captured[key] = self._capture(
                    inputs
                )  # a capture first waits for running graphs
            except torch.OutOfMemoryError:
                raise
            except RuntimeError as error:
                LOG.warning(
                    "CUDA could not capture a graph (%s): from now on each kernel is launched "
                    "separately, which is several times slower",
                    str(error).partition("\n")[0],
                )
                self.has_failed = True
                return self._call_on_stream(inputs)
            if len(self.captured) > MAX_GRAPHS:
                self.captured.popitem(last=False)
        self.captured.move_to_end(key)
        captured = self.captured[key]
        for static, columns in zip(captured.inputs, inputs, strict=True):
            torch._foreach_copy_(list(static.values()), list(columns.values()))
        if captured.graph is None:
            return self.function(captured.inputs)
        captured.graph.replay()
        return captured.outputs

    def _call_on_stream(self, inputs: Inputs) -> Outputs:
        if self.stream is None:
            return self.function(inputs)
        caller_stream = torch.cuda.current_stream(self.device)
        self.stream.wait_stream(caller_stream)
        with torch.cuda.stream(self.stream):
            outputs = self.function(inputs)
        caller_stream.wait_stream(self.stream)
        return outputs

    def _capture(self, inputs: Inputs) -> _Captured:
        static = [{name: column.clone() for name, column in columns.items()} for columns in inputs]
        if self.stream is None or self.pool is None:
            return _Captured(static, (), None)
        graph = torch.cuda.CUDAGraph()
        # other threads copy batches during a capture, which the default mode treats as an error
        capture = torch.cuda.graph(
            graph, pool=self.pool, stream=self.stream, capture_error_mode="thread_local"
        )
        try:
            # the outer block restores the stream even if the capture cannot be ended
            with CAPTURE_LOCK, torch.cuda.stream(self.stream), capture:
                outputs = self.function(static)
        except RuntimeError:
            # a failed capture leaves the allocator routing to the graph's pool; while it does, it
            # does not reuse the memory of batches
            with suppress(RuntimeError):
                torch._C._cuda_endAllocateToPool(self.stream.device_index, self.pool)
            raise
        return _Captured(static, outputs, graph)


def _shapes(inputs: Inputs) -> Hashable:
    return tuple(
        tuple((name, column.shape, column.dtype) for name, column in columns.items())
        for columns in inputs
    )
