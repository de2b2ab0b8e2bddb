"""Inputs and targets of a batch.

    rows in NumPy -> `step_columns`: columns on the device, planes still packed ->
    `inputs_and_targets`

Axes: B batch, N visited moves of all rows together. Columns are those of a shard
(`pipeline.dataset.files.shards`).
"""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from engine.board.movegen import MOVE_PLANES
from engine.encoding.move_vocabularies import index_of, vocabulary
from engine.encoding.planes import TURN_PLANE
from engine.encoding.views import NO_LABEL, require, view
from model.data.inputs import (
    Batch,
    DeviceBatch,
    NetworkInput,
    copy_to,
    hidden_columns,
    legal_moves,
    move_to_device,
    network_input,
    training_columns,
)
from model.data.planes import tensor
from model.network.conditioning import UNKNOWN
from model.network.preset import Preset
from model.training.config import TrainConfig
from model.training.objective import Targets
from model.training.policy_loss import Visits


def step_columns(
    config: TrainConfig, preset: Preset, batch: Batch, device: torch.device
) -> DeviceBatch:
    """Return all that a step needs of a batch, on the device: the columns of `move_to_device`, and
    the other targets.

    The columns `visits`, `eval`, `root_value` and `best_value` are used where they are targets and
    the batch has them. Rows whose `plies` is 0 belong to no game: `has_game` bool `[B]` is false
    for them. Rows whose label is NO_LABEL, or whose policy is kept, have no move as target:
    `has_label` bool `[B]` is false for them. Both are left out where all are True. Visits are
    `visited_rows`, `visited_moves` and `shares`, `[N]`. Raises MissingColumnError, MoveIndexError,
    PlanesError.
    """
    require(training_columns(preset), batch, f"the preset {preset.name!r}")
    more: dict[str, NDArray[Any]] = {}
    if config.teach != "value" and "visits" in batch:
        more |= _visits(preset, batch)
    if "visited_rows" in more:
        batch = {**batch, **_hide(preset, batch, more["visited_rows"])}
    has_label_B = batch["label"] != NO_LABEL
    if not has_label_B.all():
        batch = {
            **batch,
            "label": np.where(has_label_B, batch["label"], _legal_labels(batch["planes"])),
        }
    if config.teach == "value" and config.keep_policy and "root_value" in batch:
        has_label_B &= np.isnan(batch["root_value"])
    if not has_label_B.all():
        more["has_label"] = has_label_B
    if config.eval_blend and "eval" in batch:
        more["eval"] = batch["eval"]
    if config.teach != "policy" and "root_value" in batch:
        more["search_value"] = _search_values(batch)
    if "plies" in batch and not (has_game_B := batch["plies"] > 0).all():
        more["has_game"] = has_game_B
    columns = {name: copy_to(tensor(column), device) for name, column in more.items()}
    return {**move_to_device(batch, preset, device), **columns}


def inputs_and_targets(
    preset: Preset, columns: DeviceBatch, dtype: torch.dtype, *, draw: int | None
) -> tuple[NetworkInput, Targets]:
    """Return the inputs of the preset's network and its targets from the `step_columns` of a batch.

    In training `draw` selects the rows whose ratings, clocks and last moves are hidden
    (`model.network.conditioning.draw_of`).
    """
    visits = ("visited_rows", "visited_moves", "shares")
    targets = Targets(
        legal=legal_moves(preset, columns),
        labels=columns["target"],
        results=columns["result"],
        visits=Visits(*(columns[name] for name in visits)) if "shares" in columns else None,
        evals=columns.get("eval"),
        search_values=columns.get("search_value"),
        plies_left=columns.get("plies_left"),
        has_game=columns.get("has_game"),
        has_label=columns.get("has_label"),
    )
    return network_input(preset, columns, dtype, draw=draw), targets


def _hide(preset: Preset, batch: Batch, rows_N: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
    """Return the columns that may be hidden, unknown in these rows: a search knew none of them."""
    found = {}
    for name in hidden_columns(preset):
        if name in batch:
            found[name] = batch[name].copy()
            found[name][rows_N] = UNKNOWN[name]
    return found


def _legal_labels(planes_BP: NDArray[np.uint64]) -> NDArray[np.uint16]:
    """Return a legal move of each row, uint16 `[B]`: it stands for the missing label in a loss that
    is then masked.
    """
    words_BT = planes_BP[:, MOVE_PLANES:]
    kind_B = (words_BT != 0).argmax(axis=1)
    word_B = words_BT[np.arange(len(words_BT)), kind_B]
    source_B = np.bitwise_count((word_B & (~word_B + np.uint64(1))) - np.uint64(1))
    label_B: NDArray[np.uint16] = (kind_B * 64 + source_B).astype(np.uint16)
    return label_B


def _search_values(batch: Batch) -> NDArray[Any]:
    """Return each row's search value, float32 `[B]`, NaN where there is none.

    The value of the best move errs less than the root's, which is the mean of all simulations,
    where a row has it.
    """
    if "best_value" not in batch:
        return batch["root_value"]
    return np.where(np.isnan(batch["best_value"]), batch["root_value"], batch["best_value"])


def _visits(preset: Preset, batch: Batch) -> dict[str, NDArray[Any]]:
    """Return a batch's visits as flat rows, moves in the preset's vocabulary and shares `[N]`; {}
    where it has none.

    A row of the column is None, or its moves as records with `label` (the mover's view) and
    `share`. Moves without a share are left out; those of a promotion are the queen's.
    """
    searched = [
        (row, moves)
        for row, moves in enumerate(batch["visits"])
        if moves is not None and len(moves)
    ]
    if not searched:
        return {}
    rows_N = np.repeat([row for row, _ in searched], [len(moves) for _, moves in searched])
    records_N = np.concatenate([moves for _, moves in searched])
    kept_N = records_N["share"] > 0
    rows_N, records_N = rows_N[kept_N], records_N[kept_N]
    turned_N = (batch["planes"][rows_N, TURN_PLANE] != 0) & view(preset.view).absolute
    labels_N = records_N["label"].astype(np.int64)
    moves_N = index_of(
        vocabulary(preset.moves), turned_N, labels_N, np.zeros(len(labels_N), np.int64)
    )
    return {
        "visited_rows": rows_N,
        "visited_moves": moves_N,
        "shares": records_N["share"].astype(np.float32),
    }
