"""A batch made ready for a step: what the network reads, and what its rows teach.

    rows in numpy -> `step_columns`: all that a step needs, on the device -> `inputs_and_targets`

Axes: B batch, N visited moves of all rows together. Columns are those of a shard (`pipeline.dataset.files.shards`).
"""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from engine.encoding.move_vocabularies import index_of, vocabulary
from engine.encoding.planes import TURN_PLANE
from engine.encoding.views import require, view
from model.data.inputs import (
    Batch,
    DeviceBatch,
    NetworkInput,
    carried,
    legal_moves,
    network_input,
    to_device,
    training_columns,
)
from model.data.planes import tensor
from model.network.preset import Preset
from model.training.config import TrainConfig
from model.training.objective.losses import Targets
from model.training.objective.policy_losses import Visits


def step_columns(config: TrainConfig, preset: Preset, batch: Batch, device: torch.device) -> DeviceBatch:
    """Return all that a step needs of a batch, on the device: the columns of `to_device`, and what else its rows teach.

    The columns `visits` (as `visit_entries` takes it), `weight` (float32 `[B]`), `eval`, `root_value` and `best_value` are
    used where they are there and the configuration gives them a share. Rows whose `plies` is 0 belong to no game: they teach
    moves, but no results; `ended` bool `[B]` is false for them, and left out where there are none. Rows with a search's value
    and without its visits, the interior of a tree, teach no moves: `taught` bool `[B]` is false for them. Visits are
    `visited_rows`, `visited_moves` and `shares`, `[N]`. Raises MissingColumnError, MoveIndexError, PlanesError.
    """
    require(training_columns(preset), batch, f"the preset {preset.name!r}")
    more: dict[str, NDArray[Any]] = {}
    if config.visits_share and "visits" in batch:
        more |= _visits(preset, batch)
    if config.eval_blend and "eval" in batch:
        more["eval"] = batch["eval"]
    if config.root_value_share and "root_value" in batch:
        more["root_value"] = _search_values(config, batch)
    if "root_value" in batch and "visits" in batch:
        visited_B = np.array([moves is not None for moves in batch["visits"]], dtype=np.bool_)
        if (inner_B := ~np.isnan(batch["root_value"]) & ~visited_B).any():
            more["taught"] = ~inner_B
    if "plies" in batch and not (of_games_B := batch["plies"] > 0).all():
        more["ended"] = of_games_B
    if "weight" in batch:
        more["weight"] = batch["weight"].astype(np.float32)
    columns = {name: carried(tensor(column), device) for name, column in more.items()}
    return {**to_device(batch, preset, device), **columns}


def inputs_and_targets(
    preset: Preset, columns: DeviceBatch, dtype: torch.dtype, *, draw: int | None
) -> tuple[NetworkInput, Targets]:
    """Return what the preset's network reads of the `step_columns` of a batch and what it is taught.

    In training `draw` says which rows' ratings, clocks and last moves are hidden (`model.network.conditioning.draw_of`).
    """
    visits = ("visited_rows", "visited_moves", "shares")
    targets = Targets(
        legal=legal_moves(preset, columns),
        labels=columns["target"],
        results=columns["result"],
        visits=Visits(*(columns[name] for name in visits)) if "shares" in columns else None,
        evals=columns.get("eval"),
        roots=columns.get("root_value"),
        plies_left=columns.get("plies_left"),
        ended=columns.get("ended"),
        taught=columns.get("taught"),
        weights=columns.get("weight"),
    )
    return network_input(preset, columns, dtype, draw=draw), targets


def _search_values(config: TrainConfig, batch: Batch) -> NDArray[Any]:
    """Return the search's value of each row that the configuration asks for, float32 `[B]`, NaN where there is none."""
    if config.search_value == "root" or "best_value" not in batch:
        return batch["root_value"]
    best_B = batch["best_value"]
    return np.where(np.isnan(best_B), batch["root_value"], best_B)


def visit_entries(visits: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float32]]:
    """Return a column of visits as flat rows, labels and shares `[N]`, leaving out moves without a share.

    A row is None, or its moves as records with `label` (this project's, mover's view) and `share`.
    """
    searched = [(row, moves) for row, moves in enumerate(visits) if moves is not None and len(moves)]
    if not searched:
        return np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.float32)
    rows_N = np.repeat([row for row, _ in searched], [len(moves) for _, moves in searched])
    moves_N = np.concatenate([moves for _, moves in searched])
    kept_N = moves_N["share"] > 0
    return rows_N[kept_N], moves_N["label"][kept_N].astype(np.int64), moves_N["share"][kept_N].astype(np.float32)


def _visits(preset: Preset, batch: Batch) -> dict[str, NDArray[Any]]:
    """Return a batch's visits in the preset's vocabulary, nothing where it has none; a promotion's are the queen's."""
    rows_N, labels_N, shares_N = visit_entries(batch["visits"])
    if not len(rows_N):
        return {}
    turned_N = (batch["planes"][rows_N, TURN_PLANE] != 0) & view(preset.view).absolute
    moves_N = index_of(vocabulary(preset.moves), turned_N, labels_N, np.zeros(len(labels_N), np.int64))
    return {"visited_rows": rows_N, "visited_moves": moves_N, "shares": shares_N}
