"""Costs of a network: parameters, and arithmetic per position."""

import torch
from torch.utils.flop_counter import FlopCounterMode

from engine.encoding.views import view
from engine.evaluation.move_features import FEATURES
from model.data.inputs import NetworkInput
from model.network.conditioning import CONDITIONS, width
from model.network.network import Network, input_names, parameters
from model.network.preset import Preset

USUAL_MOVES = 30
"""Legal moves of a position in the count of operations; the average in rapid games is 29."""


def blank(preset: Preset) -> NetworkInput:
    """Return the inputs of one position, all zeros."""
    shapes = {
        "planes": torch.zeros(1, view(preset.view).planes, 8, 8),
        "conditions": torch.zeros(1, width(CONDITIONS[preset.condition])),
        "moves": torch.zeros(USUAL_MOVES, dtype=torch.int64),
        "move_features": torch.zeros(USUAL_MOVES, len(FEATURES), dtype=torch.uint8),
    }
    read = {name: shapes[name] for name in input_names(preset)}
    return read if len(read) > 1 else read["planes"]


def size(preset: Preset) -> dict[str, int]:
    """Return a preset's `parameters`, and `flops` of a forward pass for one position (a
    multiply-add is two).

    Only convolutions and matrix products count.
    """
    with torch.device("meta"):  # random weights would take longer than the pass
        network = Network(preset).eval()
    network.to_empty(device="cpu")
    with torch.inference_mode(), FlopCounterMode(display=False) as counter:
        network(blank(preset))
    return {"parameters": parameters(network), "flops": counter.get_total_flops()}
