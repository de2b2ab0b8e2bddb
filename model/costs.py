"""What a network costs: parameters, arithmetic for each position, and positions a second on this machine.

Axes: B batch.
"""

import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

from engine.encoding.views import view
from engine.evaluation.move_features import FEATURES
from model.data.inputs import Batch, NetworkInput, legal_moves, network_input, to_device
from model.data.outputs import flat
from model.data.playouts import playout_rows
from model.inference.evaluator import NetworkEvaluator
from model.network.conditioning import CONDITIONS, width
from model.network.network import Network, build, input_names, parameters
from model.network.preset import Preset
from model.training.objective.losses import VALUE_FORMS, wdl_of_results
from model.training.objective.policy_losses import policy_terms
from model.training.precision import autocast, device_for, dtype_for

USUAL_MOVES = 30
"""Legal moves of a position in the count of operations: 29 in rapid games on average."""
ROUNDS = 3
"""Fewest calls that a rate is the median of."""


def blank(preset: Preset) -> NetworkInput:
    """Make one position's inputs, all zeros."""
    shapes = {
        "planes": torch.zeros(1, view(preset.view).planes, 8, 8),
        "conditions": torch.zeros(1, width(CONDITIONS[preset.condition])),
        "moves": torch.zeros(USUAL_MOVES, dtype=torch.int64),
        "facts": torch.zeros(USUAL_MOVES, len(FEATURES), dtype=torch.uint8),
    }
    read = {name: shapes[name] for name in input_names(preset)}
    return read if len(read) > 1 else read["planes"]


def size(preset: Preset) -> dict[str, int]:
    """Count a preset's `parameters`, and `flops` of a forward pass for one position (a multiply-add is two).

    Counted are convolutions and matrix products; nothing is computed.
    """
    with FakeTensorMode(), FlopCounterMode(display=False) as counter:
        network = Network(preset).eval()
        network(blank(preset))
    return {"parameters": parameters(network), "flops": counter.get_total_flops()}


def _rate(step: Callable[[], object], rows: int, seconds: float) -> float:
    """Call for at least some seconds after one call to warm up; give rows a second by the median call."""
    step()
    times: list[float] = []
    began = time.perf_counter()
    while len(times) < ROUNDS or time.perf_counter() - began < seconds:
        before = time.perf_counter()
        step()
        times.append(time.perf_counter() - before)
    return rows / statistics.median(times)


def loss_of(network: Network, batch: Batch, device: torch.device, dtype: torch.dtype) -> Tensor:
    """Return the mean of the policy's cross-entropy among legal moves and the value's loss."""
    preset = network.preset
    columns = to_device(batch, preset, device)
    with autocast(device, dtype):
        policy, value_BV, *_ = network(network_input(preset, columns, dtype))
    policy_B, _ = policy_terms(flat(policy), legal_moves(preset, columns), columns["target"])
    return (policy_B + VALUE_FORMS[preset.value].loss(value_BV, wdl_of_results(columns["result"]))).mean()


def rates(preset: Preset, *, batch_size: int = 256, seconds: float = 2.0, device: str = "auto") -> dict[str, float]:
    """Measure positions a second: `inference` as an evaluator is called, `training` as a plain AdamW step is taken.

    Both begin with packed rows in memory; averaging of weights and reading of shards are not in them.
    """
    where = device_for(device)
    dtype = dtype_for("auto", where)
    batch = playout_rows(batch_size)
    network = build(preset, seed=0).to(where)
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-4, fused=True)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        loss_of(network, batch, where, dtype).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        if where.type == "cuda":
            torch.cuda.synchronize()

    training = _rate(step, batch_size, seconds)
    called = NetworkEvaluator(network, device=device)
    return {"training": training, "inference": _rate(lambda: called(batch["planes"]), batch_size, seconds)}
