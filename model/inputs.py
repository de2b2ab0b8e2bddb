"""From packed rows to what a network reads, on the device that it trains on.

Axes: B batch, P plane (77), Y row, X column, A label (4096). A plane's byte j is its row j, and bit i of it column i.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.encoding import LABELS, TURN_PLANE
from engine.legal import MOVE_PLANES
from engine.views import View

Batch = Mapping[str, NDArray[Any]]
"""Columns of a shard by name; the planes are uint64 `[B, 77]` in the mover's view."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Inputs:
    """One batch on its device, in a preset's view."""

    planes: Tensor  # [B, P, Y, X], 0 or 1, channels last
    legal: Tensor  # [B, A] bool, True where legal
    labels: Tensor  # [B] int64
    results: Tensor  # [B] int64, +1 / 0 / -1: the game's end for the mover


def tensor(array: NDArray[Any]) -> Tensor:
    """Wrap an array without copying, except one that is read-only or strided."""
    return torch.from_numpy(np.require(array, requirements=["C", "W"]))


def bytes_of(planes_BP: NDArray[np.uint64]) -> Tensor:
    """Show packed planes as uint8 `[B, P, Y]`: a byte is a row of the picture."""
    return tensor(planes_BP.astype("<u8", copy=False)).view(torch.uint8).view(*planes_BP.shape, 8)


@cache
def _bits(device: torch.device) -> Tensor:
    return torch.arange(8, dtype=torch.uint8, device=device)


@cache
def _table(view: str, name: str, device: torch.device) -> Tensor:
    from engine.views import view as find

    return tensor(getattr(find(view), name)).to(device, torch.int64)


def black(bytes_BPY: Tensor) -> Tensor:
    """Tell the rows with Black to move, bool `[B]`, from planes in the mover's view."""
    return bytes_BPY[:, TURN_PLANE, 0] != 0


def to_view(view: View, bytes_BPY: Tensor) -> Tensor:
    """Turn the mover's view into another one, still packed; the same as `engine.views.apply` on bytes."""
    if view.black_planes is not None:
        order_P = _table(view.name, "black_planes", bytes_BPY.device)
        swapped_BPY = bytes_BPY[:, order_P].flip(2)
        bytes_BPY = torch.where(black(bytes_BPY)[:, None, None], swapped_BPY, bytes_BPY)
    if view.turn_inverted:
        bytes_BPY = bytes_BPY.clone()
        bytes_BPY[:, TURN_PLANE] = ~bytes_BPY[:, TURN_PLANE]
    return bytes_BPY


def labels_to_view(view: View, black_B: Tensor, labels_B: Tensor) -> Tensor:
    """Map labels between the mover's view and another one; the map is its own inverse."""
    if view.black_labels is None:
        return labels_B
    return torch.where(black_B, _table(view.name, "black_labels", labels_B.device)[labels_B], labels_B)


def logits_from_view(view: View, black_B: Tensor, logits_BA: Tensor) -> Tensor:
    """Reorder logits from a view's labels into the mover's."""
    if view.black_labels is None:
        return logits_BA
    order_A = _table(view.name, "black_labels", logits_BA.device)
    return torch.where(black_B[:, None], logits_BA[:, order_A], logits_BA)


def unpacked(bytes_BPY: Tensor, dtype: torch.dtype) -> Tensor:
    """Unpack bits into pictures `[B, P, Y, X]` of zeros and ones, channels last in memory."""
    bytes_BYP = bytes_BPY.permute(0, 2, 1).contiguous()  # reorder the small form, not the large one
    bits_BYXP = (bytes_BYP[:, :, None, :] >> _bits(bytes_BPY.device)[:, None]) & 1
    return bits_BYXP.to(dtype).permute(0, 3, 1, 2)


def legal_mask(bytes_BPY: Tensor) -> Tensor:
    """Read the legal labels off the move planes: bool `[B, A]`, True where legal, in the view of the planes."""
    moves_BTY = bytes_BPY[:, MOVE_PLANES:].contiguous()
    bits_BTYX = (moves_BTY[..., None] >> _bits(bytes_BPY.device)) & 1
    return bits_BTYX.view(torch.bool).view(-1, LABELS)


def inputs(batch: Batch, view: View, device: torch.device, dtype: torch.dtype) -> Inputs:
    """Carry a batch to the device, into a view, and unpack it there."""
    mover_BPY = bytes_of(batch["planes"]).to(device, non_blocking=True)
    labels_B = tensor(batch["label"].astype(np.int64)).to(device, non_blocking=True)
    results_B = tensor(batch["result"].astype(np.int64)).to(device, non_blocking=True)
    bytes_BPY = to_view(view, mover_BPY)
    return Inputs(
        planes=unpacked(bytes_BPY, dtype),
        legal=legal_mask(bytes_BPY),
        labels=labels_to_view(view, black(mover_BPY), labels_B),
        results=results_B,
    )
