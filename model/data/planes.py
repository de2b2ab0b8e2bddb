"""Packed planes drawn on the device: arranged as a view has them, unpacked into pictures, legality read off them.

Axes: B batch, P plane, T move type or earlier position, Y row, X column, A index of the move vocabulary, L label (4096). A
plane's byte j is its row j, and bit i of it column i.
"""

from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.board.movegen import MOVE_PLANES
from engine.board.position import PAWN
from engine.encoding.move_vocabularies import vocabulary
from engine.encoding.planes import LABELS, PIECE_PLANES, TURN_PLANE
from engine.encoding.views import COUNTERS, View, view


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
def table(array: str, name: str, device: torch.device) -> Tensor:
    """Keep one of the tables of a view or a vocabulary on a device, int64."""
    rows: Any = vocabulary(name) if array in ("labels", "index", "turned", "promotions") else view(name)
    return tensor(getattr(rows, array)).to(device, torch.int64)


def black(bytes_BPY: Tensor) -> Tensor:
    """Return the rows with Black to move, bool `[B]`, from planes in the mover's view."""
    return bytes_BPY[:, TURN_PLANE, 0] != 0


def to_view(shown: View, bytes_BPY: Tensor) -> Tensor:
    """Arrange the stored planes as a view has them, still packed; its other planes do not come of them."""
    device = bytes_BPY.device
    out = bytes_BPY
    if shown.white_planes is not None:
        out = bytes_BPY[:, table("white_planes", shown.name, device)]
    if shown.black_planes is not None:
        swapped_BPY = bytes_BPY[:, table("black_planes", shown.name, device)].flip(2)
        out = torch.where(black(bytes_BPY)[:, None, None], swapped_BPY, out)
    if shown.turn_inverted:
        out = out.clone() if out is bytes_BPY else out
        out[:, TURN_PLANE] = ~bytes_BPY[:, TURN_PLANE]
    return out


def _state(shown: View, columns: Mapping[str, Tensor]) -> Tensor:
    """Draw castling rights and the en-passant file, packed: uint8 `[B, 5, Y]`."""
    rights_B, file_B = columns["castling"], columns["ep_file"]
    order_4 = torch.arange(4, device=rights_B.device)
    turned_B1 = (black(columns["planes"]) & shown.absolute)[:, None]
    rights_B4 = rights_B[:, None] >> torch.where(turned_B1, order_4 ^ 2, order_4) & 1
    column_B1 = torch.where(file_B < 8, 1 << file_B.clamp(max=7), 0)[:, None]
    return torch.cat((rights_B4 * 255, column_B1), 1).to(torch.uint8)[:, :, None].expand(-1, -1, 8)


def _last(shown: View, columns: Mapping[str, Tensor]) -> Tensor:
    """Draw where the opponent's last move began and ended, packed: uint8 `[B, 2, Y]`; nothing where it is unknown."""
    moves_B = columns["last_move"]
    turned_B = torch.where(black(columns["planes"]) & shown.absolute, 56, 0)
    squares_B2 = torch.stack((moves_B // 64, moves_B), 1) % 64 ^ turned_B[:, None]
    bits_B2 = torch.where(moves_B[:, None] < LABELS, 1 << squares_B2 % 8, 0)
    rows_Y = torch.arange(8, device=moves_B.device)
    return torch.where(squares_B2[:, :, None] // 8 == rows_Y, bits_B2[:, :, None], 0).to(torch.uint8)


def _history(shown: View, columns: Mapping[str, Tensor]) -> Tensor:
    """Draw the pieces of earlier positions, packed: uint8 `[B, 12 * T, Y]`."""
    past_BTPY = columns["history"][:, : shown.history]
    out = past_BTPY
    if shown.white_planes is not None:
        out = past_BTPY[:, :, table("white_planes", shown.name, out.device)[:PIECE_PLANES]]
    if shown.black_planes is not None:
        swapped_BTPY = past_BTPY[:, :, table("black_planes", shown.name, out.device)[:PIECE_PLANES]].flip(3)
        out = torch.where(black(columns["planes"])[:, None, None, None], swapped_BTPY, out)
    return out.flatten(1, 2)


def unpacked(bytes_BPY: Tensor, dtype: torch.dtype) -> Tensor:
    """Unpack bits into pictures `[B, P, Y, X]` of zeros and ones, channels last in memory."""
    bytes_BYP = bytes_BPY.permute(0, 2, 1).contiguous()  # reorder the small form, not the large one
    bits_BYXP = (bytes_BYP[:, :, None, :] >> _bits(bytes_BPY.device)[:, None]) & 1
    return bits_BYXP.to(dtype).permute(0, 3, 1, 2)


def pictures(shown: View, columns: Mapping[str, Tensor], dtype: torch.dtype) -> Tensor:
    """Draw every plane of a view `[B, P, Y, X]`, channels last: engine.encoding.views.apply and its counters on the device."""
    packed = [to_view(shown, columns["planes"])]
    packed += [_state(shown, columns)] if shown.state else []
    packed += [_last(shown, columns)] if shown.last else []
    packed += [_history(shown, columns)] if shown.history else []
    pictures_BPYX = unpacked(packed[0] if len(packed) == 1 else torch.cat(packed, 1), dtype)
    if not shown.counters:
        return pictures_BPYX
    scaled = [(columns[name].float() / COUNTERS[name]).clamp(max=1) for name in shown.counters]
    constant_BPYX = torch.stack(scaled, 1).to(dtype)[:, :, None, None].expand(-1, -1, 8, 8)
    return torch.cat((pictures_BPYX, constant_BPYX), 1).contiguous(memory_format=torch.channels_last)


def legal_mask(bytes_BPY: Tensor) -> Tensor:
    """Read the legal labels off the move planes: bool `[B, L]`, True where legal, in the frame of the planes."""
    moves_BTY = bytes_BPY[:, MOVE_PLANES:].contiguous()
    bits_BTYX = (moves_BTY[..., None] >> _bits(bytes_BPY.device)) & 1
    return bits_BTYX.view(torch.bool).view(-1, LABELS)


def promoting(bytes_BPY: Tensor, labels_A: Tensor) -> Tensor:
    """Return for each label whether an own pawn on the seventh rank makes the move, bool `[B, A]`; the mover's view."""
    bits_BX = (bytes_BPY[:, PAWN, 1, None] >> _bits(bytes_BPY.device)) & 1
    squares_A = labels_A % 64
    return bits_BX.bool()[:, squares_A % 8] & (squares_A // 8 == 1)
