"""Packed rows in NumPy to a network's rows on its device.

    a batch of shards' columns -> `load_rows` -> `model.network.encoder.Rows`

`input_columns` and `training_columns` name the columns that a preset needs.

Axes: B batch, P plane, M legal moves of all rows, F features.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.board.rng import GOLDEN, mix
from engine.encoding.attacks import attack_planes
from engine.encoding.move_vocabularies import vocabulary
from engine.encoding.planes import PIECE_PLANES, PLANES
from engine.encoding.views import LAST_MOVES, require, view
from engine.evaluation.move_features import FEATURES, legal_move_features
from model.network.encoder import CLOCKS, CONDITIONS, NO_MOVE, RATINGS, UNKNOWN, Rows, to_tensor
from model.network.preset import Preset

Batch = Mapping[str, NDArray[Any]]
"""Columns of a shard by name; the planes are uint64 `[B, 77]` in the mover's view."""

HIDE_ONE_IN = 8
"""One row in this many has its ratings hidden in training, one its clock, one its moves."""
PADDED_MOVES = 4
"""Legal moves are padded to a multiple of this many for each row, for few shapes."""


def input_columns(preset: Preset) -> tuple[str, ...]:
    """Return the names of the columns that a network reads besides `planes`."""
    return (*view(preset.view).columns, *CONDITIONS[preset.condition])


def column_defaults(preset: Preset) -> dict[str, int]:
    """Return the value that stands for unknown in each of the `input_columns`."""
    return {name: UNKNOWN.get(name, 0) for name in input_columns(preset)}


def training_columns(preset: Preset) -> tuple[str, ...]:
    """Return the names of all columns that training a preset needs."""
    names = ["planes", "label", "result", *input_columns(preset)]
    names += ["promotion"] if vocabulary(preset.moves).under_promotions else []
    names += ["game", "ply"] if hidden_columns(preset) else []
    names += ["plies", "ply"] if preset.moves_left else []
    return tuple(dict.fromkeys(names))


def hidden_columns(preset: Preset) -> tuple[str, ...]:
    """Return the names of the columns that are hidden in some rows in training."""
    return (*LAST_MOVES[: view(preset.view).last], *CONDITIONS[preset.condition])


def load_rows(
    preset: Preset, batch: Batch, device: torch.device, *, padded: bool = False
) -> dict[str, Tensor]:
    """Return what a preset reads of a batch, on the device.

    Attack planes and move features are computed here; with `padded`, legal moves are padded.
    Raises PlanesError for planes that are no position, MissingColumnError for a column that the
    preset reads and the batch lacks.
    """
    names = input_columns(preset)
    require(names, batch, f"the preset {preset.name!r}")
    columns = {"planes": to_bytes(batch["planes"])}
    columns |= {name: to_tensor(batch[name].astype(np.int64)) for name in names}
    if view(preset.view).attacks:
        columns["attacks"] = to_bytes(attack_planes(batch["planes"]))
    if preset.move_features_width:
        moves = legal_move_features(batch["planes"])
        if padded:
            moves = pad_moves(moves, PADDED_MOVES * len(batch["planes"]))
        columns |= {name: to_tensor(column) for name, column in moves.items()}
    return {name: copy_to(column, device) for name, column in columns.items()}


def pad_moves(moves: Batch, step: int) -> dict[str, NDArray[Any]]:
    """Pad legal moves and their features to the next multiple of `step`, by NO_MOVE and zeros."""
    count = -len(moves["moves"]) % step
    return {
        "moves": np.pad(moves["moves"], (0, count), constant_values=NO_MOVE),
        "move_features": np.pad(moves["move_features"], ((0, count), (0, 0))),
    }


def to_bytes(planes_BP: NDArray[np.uint64]) -> Tensor:
    """Return packed planes as uint8 `[B, P, 8]`; a byte is a row of the picture."""
    words_BP = to_tensor(planes_BP.astype("<u8", copy=False))
    return words_BP.view(torch.uint8).view(*planes_BP.shape, 8)


def copy_to(column: Tensor, device: torch.device) -> Tensor:
    """Copy a column to the device, to a GPU from pinned memory without waiting."""
    return column if device.type == "cpu" else column.pin_memory().to(device, non_blocking=True)


def blank_rows(preset: Preset, count: int, moves: int) -> dict[str, Tensor]:
    """Return `count` rows of zeros with `moves` legal moves in all, as a graph's inputs."""
    rows = {"planes": torch.zeros(count, PLANES, 8, dtype=torch.uint8)}
    rows |= {name: torch.zeros(count, dtype=torch.int64) for name in input_columns(preset)}
    if view(preset.view).attacks:
        rows["attacks"] = torch.zeros(count, PIECE_PLANES, 8, dtype=torch.uint8)
    if preset.move_features_width:
        rows["moves"] = torch.zeros(moves, dtype=torch.int64)
        rows["move_features"] = torch.zeros(moves, len(FEATURES), dtype=torch.uint8)
    return rows


def draw_of(seed: int, step: int) -> int:
    """Return the number, 32 bits, that selects a step's hidden rows, by splitmix64 (Steele 2014).

    It depends on seed and step only, so that a resumed run hides what an uninterrupted one would.
    """
    words = np.array([seed % (1 << 64)], dtype=np.uint64)
    for number in (step, 0):
        words = mix(words + np.uint64(number) + GOLDEN)
    return int(words[0]) >> 32


def hide(rows: Rows, names: tuple[str, ...], draw: int | Tensor) -> Rows:
    """Return rows with ratings, clocks and last moves of some, if in `names`, set to unknown.

    The rows are selected by a hash of (game, ply, draw), 32 bits, with the finalizer of
    MurmurHash3, and not by their place in a batch: microbatches and processes hide what one batch
    would. `draw` may be a tensor on the device, so that a captured step reads another each time.
    """
    if not names:
        return rows
    mixed_B = (rows["game"] * 0x9E3779B1 + rows["ply"] * 0x85EBCA77 + draw) & 0xFFFFFFFF
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        mixed_B = ((mixed_B ^ (mixed_B >> shift)) * factor) & 0xFFFFFFFF
    mixed_B ^= mixed_B >> 16
    hidden = dict(rows)
    for group, shift in ((RATINGS, 12), (CLOCKS, 20), (LAST_MOVES, 4)):
        hidden_B = (mixed_B >> shift) % HIDE_ONE_IN == 0
        for name in group:
            if name in names:
                hidden[name] = rows[name].masked_fill(hidden_B, UNKNOWN[name])
    return hidden
