"""Packed rows to a network's inputs, on its device.

    rows in NumPy -> `move_to_device`: columns on the device, planes still packed ->
    `network_input`, `legal_moves`

`input_columns` and `training_columns` name the columns that a preset needs.

Axes: B batch, P plane, Y row, X column, A index of the move vocabulary, M legal move, F feature.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.encoding.attacks import attack_planes
from engine.encoding.move_vocabularies import NONE, index_of, vocabulary
from engine.encoding.planes import TURN_PLANE
from engine.encoding.views import LAST_MOVES, require, view
from engine.evaluation.move_features import legal_move_features
from model.data.planes import (
    arrange_for_view,
    black,
    bytes_of,
    legal_mask,
    pictures,
    promoting,
    table,
    tensor,
)
from model.network.conditioning import CONDITIONS, UNKNOWN, encode_conditions, hide
from model.network.preset import Preset

Batch = Mapping[str, NDArray[Any]]
"""Columns of a shard by name; the planes are uint64 `[B, 77]` in the mover's view."""
DeviceBatch = Mapping[str, Tensor]
"""A batch on its device, in the mover's view: `planes` as bytes `[B, 77, 8]`, and `attacks` where
the view has them; other columns `[B]`; `target`, moves as indices of the preset's vocabulary; where
the preset reads move features, `moves` int64 `[M]` and `move_features` uint8 `[M, F]` of the legal
moves of all rows."""
NetworkInput = Tensor | dict[str, Tensor]
"""Inputs of a network: pictures `[B, P, Y, X]`, or a dict of `planes` and the preset's other
inputs."""


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


def move_to_device(batch: Batch, preset: Preset, device: torch.device) -> DeviceBatch:
    """Return what a preset needs of a batch, on the device; labels, results and lengths where the
    batch has them.

    Attack planes and move features are computed here. Raises PlanesError for planes that are no
    position, MissingColumnError for a column that the preset reads and the batch lacks,
    MoveIndexError for a label outside the preset's vocabulary.
    """
    require(input_columns(preset), batch, f"the preset {preset.name!r}")
    columns = {"planes": bytes_of(batch["planes"])}
    for name in (*input_columns(preset), *(("game", "ply") if hidden_columns(preset) else ())):
        if name in batch:
            columns[name] = tensor(batch[name].astype(np.int64))
    if view(preset.view).attacks:
        columns["attacks"] = bytes_of(attack_planes(batch["planes"]))
    if preset.move_features_width:
        columns |= {
            name: tensor(column) for name, column in legal_move_features(batch["planes"]).items()
        }
    if "label" in batch:
        columns["target"] = tensor(_targets(preset, batch))
    if "result" in batch:
        columns["result"] = tensor(batch["result"].astype(np.int64))
    if preset.moves_left and "plies" in batch:
        require(("plies", "ply"), batch, f"the preset {preset.name!r}")
        columns["plies_left"] = tensor(
            batch["plies"].astype(np.float32) - batch["ply"].astype(np.float32)
        )
    return {name: copy_to(column, device) for name, column in columns.items()}


def copy_to(column: Tensor, device: torch.device) -> Tensor:
    """Copy a column to the device, to a GPU from pinned memory; later operations of the same stream
    wait for it.
    """
    return column if device.type == "cpu" else column.pin_memory().to(device, non_blocking=True)


def _targets(preset: Preset, batch: Batch) -> NDArray[np.int64]:
    """Return the rows' moves as indices of the vocabulary, int64 `[B]`."""
    moves = vocabulary(preset.moves)
    turned_B = (batch["planes"][:, TURN_PLANE] != 0) & view(preset.view).absolute
    promotions_B = np.zeros(len(turned_B), np.int64)
    if moves.under_promotions:
        require(("promotion",), batch, f"the preset {preset.name!r}")
        promotions_B = batch["promotion"].astype(np.int64)
    return index_of(moves, turned_B, batch["label"], promotions_B)


def network_input(
    preset: Preset, columns: DeviceBatch, dtype: torch.dtype, *, draw: int | None = None
) -> NetworkInput:
    """Return the network's inputs; in training `draw` hides some rows' ratings, clocks and last
    moves (`hide`).
    """
    if draw is not None and (hideable := hidden_columns(preset)):
        require(("game", "ply"), columns, f"the preset {preset.name!r}")
        columns = hide(columns, hideable, draw)
    pictures_BPYX = pictures(view(preset.view), columns, dtype)
    conditions = CONDITIONS[preset.condition]
    more = {"conditions": encode_conditions(columns, conditions)} if conditions else {}
    more |= {
        name: columns[name] for name in ("moves", "move_features") if preset.move_features_width
    }
    return {"planes": pictures_BPYX, **more} if more else pictures_BPYX


def legal_moves(preset: Preset, columns: DeviceBatch) -> Tensor:
    """Return which indices of the preset's vocabulary are legal moves, bool `[B, A]`."""
    shown, moves, bytes_BPY = view(preset.view), vocabulary(preset.moves), columns["planes"]
    device = bytes_BPY.device
    # the view's own move planes are the mask
    if moves.name == "marro4096" and shown.white_planes is None:
        return legal_mask(arrange_for_view(shown, bytes_BPY))
    labels_A = table("labels", moves.name, device)
    mask_BA = legal_mask(bytes_BPY)[:, labels_A.clamp(min=0)] & (labels_A != NONE)
    if moves.under_promotions:
        mask_BA &= promoting(bytes_BPY, labels_A) | (table("promotions", moves.name, device) == 0)
    if shown.absolute:
        mask_BA = torch.where(
            black(bytes_BPY)[:, None], mask_BA[:, table("turned", moves.name, device)], mask_BA
        )
    return mask_BA
