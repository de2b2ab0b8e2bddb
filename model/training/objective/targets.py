"""A batch made ready for a step: what the network reads, and what its rows teach.

Axes: B batch, N visited moves of all rows together. Columns are those of a shard (`pipeline.dataset.files.shards`).
"""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.encoding.move_vocabularies import index_of, vocabulary
from engine.encoding.planes import TURN_PLANE
from engine.encoding.views import require, view
from model.data.inputs import Batch, NetworkInput, legal_moves, network_input, to_device, training_columns
from model.data.planes import tensor
from model.network.preset import Preset
from model.training.config import TrainConfig
from model.training.objective.losses import Targets
from model.training.objective.policy_losses import Visits


def inputs_and_targets(
    config: TrainConfig, preset: Preset, batch: Batch, device: torch.device, dtype: torch.dtype, *, draw: int | None
) -> tuple[NetworkInput, Targets]:
    """Return what the preset's network reads of a batch and what it is taught, on the device.

    The columns `visits` (as `visit_entries` takes it), `weight` (float32 `[B]`), `eval` and `root_value` are used where they
    are there and the configuration gives them a share. Rows whose `plies` is 0 belong to no game: they teach moves, but no
    results. In training `draw` says which rows' ratings, clocks and last moves are hidden
    (`model.network.conditioning.draw_of`). Raises MissingColumnError, MoveIndexError, PlanesError.
    """
    require(training_columns(preset), batch, f"the preset {preset.name!r}")
    columns = to_device(batch, preset, device)
    targets = Targets(
        legal=legal_moves(preset, columns),
        labels=columns["target"],
        results=columns["result"],
        visits=_visits(preset, batch, device) if config.visits_share and "visits" in batch else None,
        evals=_column(batch["eval"], device) if config.eval_blend and "eval" in batch else None,
        roots=_column(batch["root_value"], device) if config.root_value_share and "root_value" in batch else None,
        plies_left=columns.get("plies_left"),
        ended=_ended(batch, device),
        weights=_column(batch["weight"].astype(np.float32), device) if "weight" in batch else None,
    )
    return network_input(preset, columns, dtype, draw=draw), targets


def _ended(batch: Batch, device: torch.device) -> Tensor | None:
    """Return which rows belong to games, bool `[B]`; None where all do."""
    of_games_B = batch["plies"] > 0 if "plies" in batch else np.ones(0, np.bool_)
    return None if of_games_B.all() else _column(of_games_B, device)


def _column(column: NDArray[Any], device: torch.device) -> Tensor:
    return tensor(column).to(device, non_blocking=True)


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


def _visits(preset: Preset, batch: Batch, device: torch.device) -> Visits | None:
    """Return a batch's visits in the preset's vocabulary; a promotion's are the queen's."""
    rows_N, labels_N, shares_N = visit_entries(batch["visits"])
    if not len(rows_N):
        return None
    turned_N = (batch["planes"][rows_N, TURN_PLANE] != 0) & view(preset.view).absolute
    moves_N = index_of(vocabulary(preset.moves), turned_N, labels_N, np.zeros(len(labels_N), np.int64))
    return Visits(_column(rows_N, device), _column(moves_N, device), _column(shares_N, device))
