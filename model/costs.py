"""Count a network's parameters and its operations per position."""

import torch
from torch.utils.flop_counter import FlopCounterMode

from model.data.rows import blank_rows
from model.network.network import Network, count_parameters
from model.network.preset import Preset

TYPICAL_MOVES = 30
"""Legal moves assumed per position when counting operations; the average in rapid games is 29."""


def count_costs(preset: Preset) -> dict[str, int]:
    """Return a preset's number of `parameters`, and the `flops` of a forward pass of one position.

    Only convolutions and matrix products are counted; a multiply-add is two operations.
    """
    with torch.device("meta"):  # initializing the weights would take longer than the pass
        network = Network(preset).eval()
    network.to_empty(device="cpu")
    with torch.inference_mode(), FlopCounterMode(display=False) as counter:
        network(blank_rows(preset, 1, TYPICAL_MOVES))
    return {"parameters": count_parameters(network), "flops": counter.get_total_flops()}
