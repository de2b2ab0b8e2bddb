"""Convert packed NumPy rows to a network's inputs on its device.

    a batch of shard columns -> `load_rows` -> `model.network.encoder.Rows`

`input_columns` and `training_columns` list the columns that a preset needs.

Axes: B batch, P plane, M legal moves of all rows, F features.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from engine.board.rng import GOLDEN_GAMMA, mix_bits
from engine.encoding.attacks import attack_planes
from engine.encoding.move_vocabularies import vocabulary
from engine.encoding.planes import PIECE_PLANES, PLANES
from engine.encoding.views import LAST_MOVES, require_columns, view
from engine.evaluation.move_features import MOVE_FEATURES, legal_move_features
from model.network.encoder import CLOCKS, CONDITIONS, NO_MOVE, RATINGS, UNKNOWN, Rows, to_tensor
from model.network.preset import Preset

Batch = Mapping[str, NDArray[Any]]
"""Shard columns by name; the planes are uint64 `[B, 77]`, seen from the side to move."""

HIDE_ONE_IN = 8
"""In training, one row in HIDE_ONE_IN has its ratings hidden; the same holds for clocks and for the
last moves."""
TRAINING_MOVES_STEP, EVALUATION_MOVES_STEP = 4, 16
"""The legal moves of a batch of N rows are padded to a multiple of N times this number, to limit
the number of shapes."""


def input_columns(preset: Preset) -> tuple[str, ...]:
    """Return the names of the columns that a network reads, except `planes`."""
    return (*view(preset.view).columns, *CONDITIONS[preset.condition])


def column_defaults(preset: Preset) -> dict[str, int]:
    """Return the value that means unknown for each input column; 0 where a column has none."""
    return {name: UNKNOWN.get(name, 0) for name in input_columns(preset)}


def training_columns(preset: Preset) -> tuple[str, ...]:
    """Return the names of all columns needed to train a preset."""
    names = ["planes", "label", "result", *input_columns(preset)]
    names += ["promotion"] if vocabulary(preset.moves).under_promotions else []
    names += ["game", "ply"] if hidden_columns(preset) else []
    names += ["plies", "ply"] if preset.moves_left else []
    return tuple(dict.fromkeys(names))


def hidden_columns(preset: Preset) -> tuple[str, ...]:
    """Return the names of the columns that training hides in some rows."""
    return (*LAST_MOVES[: view(preset.view).last], *CONDITIONS[preset.condition])


def load_rows(
    preset: Preset, batch: Batch, device: torch.device, *, padded: bool = False
) -> dict[str, Tensor]:
    """Return a batch's network inputs on the device.

    Attack planes and move features are computed here. With `padded`, the number of legal moves is
    padded to a multiple of TRAINING_MOVES_STEP per row. Raises PlanesError for planes that do not
    describe a position, and MissingColumnError if the batch lacks a column that the preset reads.
    """
    names = input_columns(preset)
    require_columns(names, batch, f"the preset {preset.name!r}")
    columns = {"planes": to_bytes(batch["planes"])}
    columns |= {name: to_tensor(batch[name].astype(np.int64)) for name in names}
    if view(preset.view).attacks:
        columns["attacks"] = to_bytes(attack_planes(batch["planes"]))
    if preset.move_features_width:
        moves = legal_move_features(batch["planes"])
        columns |= {name: to_tensor(column) for name, column in moves.items()}
    if padded:
        columns = pad_rows(columns, len(batch["planes"]), TRAINING_MOVES_STEP)
    return {name: copy_to(column, device) for name, column in columns.items()}


def pad_rows(rows: Rows, count: int, moves_step: int = EVALUATION_MOVES_STEP) -> dict[str, Tensor]:
    """Pad rows to `count` with zeros, and their legal moves to a multiple of `moves_step` per row.

    The network's outputs for the given rows do not change.
    """
    padded = {}
    for name, column in rows.items():
        is_moves = name in ("moves", "move_features")
        missing = -len(column) % (moves_step * count) if is_moves else count - len(column)
        sides = [0] * (2 * column.ndim - 1) + [missing]
        value = NO_MOVE if name == "moves" else 0
        padded[name] = F.pad(column, sides, value=value) if missing else column
    return padded


def to_bytes(planes_BP: NDArray[np.uint64]) -> Tensor:
    """Return packed planes as uint8 `[B, P, 8]`, one byte per row of the board."""
    words_BP = to_tensor(planes_BP.astype("<u8", copy=False))
    return words_BP.view(torch.uint8).view(*planes_BP.shape, 8)


def copy_to(column: Tensor, device: torch.device) -> Tensor:
    """Copy a column to the device; copies to a GPU are asynchronous, from pinned memory."""
    return column if device.type == "cpu" else column.pin_memory().to(device, non_blocking=True)


def blank_rows(preset: Preset, count: int, moves: int) -> dict[str, Tensor]:
    """Return `count` rows of zeros with `moves` legal moves in total, to trace a network with."""
    rows = {"planes": torch.zeros(count, PLANES, 8, dtype=torch.uint8)}
    rows |= {name: torch.zeros(count, dtype=torch.int64) for name in input_columns(preset)}
    if view(preset.view).attacks:
        rows["attacks"] = torch.zeros(count, PIECE_PLANES, 8, dtype=torch.uint8)
    if preset.move_features_width:
        rows["moves"] = torch.zeros(moves, dtype=torch.int64)
        rows["move_features"] = torch.zeros(moves, len(MOVE_FEATURES), dtype=torch.uint8)
    return rows


def hash_step(seed: int, step: int) -> int:
    """Hash a run's seed and step to 32 bits with splitmix64 (Steele 2014), for `hide_columns`.

    The hash depends on nothing else, so a resumed run hides the same rows as an uninterrupted one.
    """
    words = np.array([seed % (1 << 64)], dtype=np.uint64)
    for number in (step, 0):
        words = mix_bits(words + np.uint64(number) + GOLDEN_GAMMA)
    return int(words[0]) >> 32


def hide_columns(rows: Rows, names: tuple[str, ...], step_hash: int | Tensor) -> Rows:
    """Set ratings, clocks or last moves to unknown in some rows, for the columns in `names`.

    Rows are selected by a 32-bit hash of (game, ply, step_hash), the finalizer of MurmurHash3, so
    the division into microbatches and processes does not matter. `step_hash` may be a tensor on the
    device, so that a captured CUDA graph can read a new value.
    """
    if not names:
        return rows
    mixed_B = (rows["game"] * 0x9E3779B1 + rows["ply"] * 0x85EBCA77 + step_hash) & 0xFFFFFFFF
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
