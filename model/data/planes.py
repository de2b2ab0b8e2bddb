"""Packed planes on the device: arranged for a view, unpacked into pictures, and as a legality mask.

Axes: B batch, P plane, T move type, Y row, X column, A index of the move vocabulary, L label
(4096). A plane's byte j is its row j, and bit i of it column i.
"""

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.board.movegen import MOVE_PLANES
from engine.board.position import PAWN
from engine.encoding.move_vocabularies import vocabulary
from engine.encoding.planes import LABELS, TURN_PLANE
from engine.encoding.views import View, counters, packed, stored_planes, view


def tensor(array: NDArray[Any]) -> Tensor:
    """Return an array as a tensor, without a copy unless it is read-only or strided."""
    return torch.from_numpy(np.require(array, requirements=["C", "W"]))


def bytes_of(planes_BP: NDArray[np.uint64]) -> Tensor:
    """Return packed planes as uint8 `[B, P, Y]`; a byte is a row of the picture."""
    return tensor(planes_BP.astype("<u8", copy=False)).view(torch.uint8).view(*planes_BP.shape, 8)


@cache
def _bits(device: torch.device) -> Tensor:
    return torch.arange(8, dtype=torch.uint8, device=device)


@cache
def table(array: str, name: str, device: torch.device) -> Tensor:
    """Return a table of a view or a vocabulary on a device, int64; cached."""
    rows: Any = (
        vocabulary(name) if array in ("labels", "index", "turned", "promotions") else view(name)
    )
    return tensor(getattr(rows, array)).to(device, torch.int64)


def black(bytes_BPY: Tensor) -> Tensor:
    """Return the rows with Black to move, bool `[B]`, from planes in the mover's view."""
    return bytes_BPY[:, TURN_PLANE, 0] != 0


def _tables(shown: View, device: torch.device) -> Callable[[str], Tensor]:
    return lambda array: table(array, shown.name, device)


def arrange_for_view(shown: View, bytes_BPY: Tensor) -> Tensor:
    """Return a view's planes that are arranged from stored ones, packed: uint8 `[B, P, Y]`."""
    planes_BPY: Tensor = stored_planes(shown, bytes_BPY, torch, _tables(shown, bytes_BPY.device))
    return planes_BPY


def unpack_planes(bytes_BPY: Tensor, dtype: torch.dtype) -> Tensor:
    """Unpack bits into pictures `[B, P, Y, X]` of zeros and ones, channels last in memory."""
    bytes_BYP = bytes_BPY.permute(0, 2, 1).contiguous()  # reorder the small form, not the large one
    bits_BYXP = (bytes_BYP[:, :, None, :] >> _bits(bytes_BPY.device)[:, None]) & 1
    return bits_BYXP.to(dtype).permute(0, 3, 1, 2)


def pictures(shown: View, columns: Mapping[str, Tensor], dtype: torch.dtype) -> Tensor:
    """Return all planes of a view as pictures `[B, P, Y, X]`, channels last."""
    pictures_BPYX = unpack_planes(
        packed(shown, columns, torch, _tables(shown, columns["planes"].device)), dtype
    )
    if not shown.counters:
        return pictures_BPYX
    constant_BPYX = counters(shown, columns, torch).to(dtype)[:, :, None, None].expand(-1, -1, 8, 8)
    return torch.cat((pictures_BPYX, constant_BPYX), 1).contiguous(
        memory_format=torch.channels_last
    )


def legal_mask(bytes_BPY: Tensor) -> Tensor:
    """Return the legal labels from the move planes: bool `[B, L]`, True where legal, in the frame
    of the planes.
    """
    moves_BTY = bytes_BPY[:, MOVE_PLANES:].contiguous()
    bits_BTYX = (moves_BTY[..., None] >> _bits(bytes_BPY.device)) & 1
    return bits_BTYX.view(torch.bool).view(-1, LABELS)


def promoting(bytes_BPY: Tensor, labels_A: Tensor) -> Tensor:
    """Return for each label whether an own pawn on the seventh rank makes the move, bool `[B, A]`;
    the mover's view.
    """
    bits_BX = (bytes_BPY[:, PAWN, 1, None] >> _bits(bytes_BPY.device)) & 1
    squares_A = labels_A % 64
    return bits_BX.bool()[:, squares_A % 8] & (squares_A // 8 == 1)
