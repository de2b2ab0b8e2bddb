"""Compute the training targets of a batch and their weights, in NumPy.

    columns of a batch -> `resolve_targets`; `load_training_rows` also loads the network's inputs

column                            content
label             int64 [B]       index of the move among the logits, -1 if it is not a target
policy_moves      int64 [B, K]    indices of the target's moves, 0 in padding
policy_shares     float32 [B, K]  their shares, which add up to one; 0 in padding
policy_weight     float32 [B]     1, or 0 in rows without a policy target
reference_weight  float32 [B]     1 - policy_weight; only if a row has no policy target
value_target      float32 [B, 3]  win, draw, loss, for the side to move
value_weight      float32 [B]     1, or 0 in rows without a value target
plies_left        float32 [B]     half-moves to the end of the game
plies_weight      float32 [B]     1, or 0 in rows without a game

Rows with `plies` 0 belong to no game, so their result is not a target. In searched rows, depending
on the settings, the search's visits are the policy target, and its value the value target.

Axes: B batch, K moves of a policy target, N moves of all rows' targets.
"""

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.board.movegen import MOVE_PLANES
from engine.encoding.move_vocabularies import vocabulary
from engine.encoding.planes import legal_mask
from engine.encoding.views import NO_LABEL, require_columns
from engine.errors import UserError
from model.data.rows import (
    Batch,
    copy_to,
    hidden_columns,
    load_rows,
    training_columns,
)
from model.network.decoder import index_labels
from model.network.encoder import UNKNOWN, to_tensor
from model.network.preset import Preset
from model.training.config import TrainConfig

NO_EVAL = -32768
"""Value of the column `eval` in rows without an evaluation."""
EVAL_LIMIT = 1000
"""Limit that evaluations, mates included, are clipped to, in centipawns. Human players with larger
advantages do not win more often."""
EVAL_MARGIN, EVAL_SLOPE = 98.0, 517.0
"""Parameters of `wdl_from_centipawns`, in centipawns, fitted by maximum likelihood to 724,000
positions of rapid games at all ratings. Their Brier score is 0.182, that of the formula of
lichess.org/page/accuracy 0.190."""

Columns = dict[str, NDArray[Any]]


class IllegalTargetError(UserError):
    """A target move is not legal in its position."""


def load_training_rows(
    config: TrainConfig, preset: Preset, batch: Batch, device: torch.device
) -> dict[str, Tensor]:
    """Return a batch's network inputs and targets on the device.

    Raises MissingColumnError, MoveIndexError, PlanesError or IllegalTargetError.
    """
    require_columns(training_columns(preset), batch, f"the preset {preset.name!r}")
    visited_B, hidden = find_visited(config, batch), hidden_columns(preset)
    columns = resolve_targets(config, preset, batch, visited_B)
    if hidden:
        columns |= {name: batch[name].astype(np.int64) for name in ("game", "ply")}
    if hidden and visited_B.any():
        # the search that counted the visits did not know these columns
        unknown = {name: np.where(visited_B, UNKNOWN[name], batch[name]) for name in hidden}
        batch = {**batch, **unknown}
    targets = {name: copy_to(to_tensor(column), device) for name, column in columns.items()}
    return load_rows(preset, batch, device, padded=True) | targets


def resolve_targets(
    config: TrainConfig, preset: Preset, batch: Batch, visited_B: NDArray[np.bool_]
) -> Columns:
    """Return the targets that the module docstring lists; `visited_B` is from `find_visited`."""
    columns = _resolve_policy(config, preset, batch, visited_B)
    columns |= _resolve_value(config, preset, batch)
    if not columns["policy_weight"].all():
        columns["reference_weight"] = 1 - columns["policy_weight"]
    if preset.moves_left:
        left_B = batch["plies"].astype(np.float32) - batch["ply"].astype(np.float32)
        columns |= {"plies_left": left_B, "plies_weight": _float(batch["plies"] > 0)}
    return columns


def _float(column: NDArray[Any]) -> NDArray[np.float32]:
    return column.astype(np.float32)


def find_visited(config: TrainConfig, batch: Batch) -> NDArray[np.bool_]:
    """Return which rows have a search's visits as their policy target, bool `[B]`."""
    visits = batch["visits"] if config.learns_visits and "visits" in batch else ()
    visited_B = np.zeros(len(batch["planes"]), np.bool_)
    for row, moves in enumerate(visits):
        visited_B[row] = moves is not None and (moves["share"] > 0).any()
    return visited_B


def _resolve_policy(
    config: TrainConfig, preset: Preset, batch: Batch, visited_B: NDArray[np.bool_]
) -> Columns:
    """Return the policy targets: visits if any, else the label, with label smoothing."""
    has_label_B = batch["label"] != NO_LABEL
    if config.teach == "value" and config.keep_policy and "root_value" in batch:
        has_label_B &= np.isnan(batch["root_value"])
    has_target_B = has_label_B | visited_B

    labels_B = np.where(has_label_B, batch["label"], 0).astype(np.int64)
    promotions_B = np.where(has_label_B, batch.get("promotion", 0), 0)
    _check_legal(batch, np.flatnonzero(has_label_B), labels_B[has_label_B])
    label_B = np.full(len(labels_B), -1, dtype=np.int64)
    label_B[has_label_B] = index_labels(preset, labels_B[has_label_B], promotions_B[has_label_B])
    played_B = np.flatnonzero(has_label_B & ~visited_B)
    parts = [(played_B, label_B[played_B], np.ones(len(played_B)))]
    if visited_B.any():
        parts.append(_list_visits(config, preset, batch, np.flatnonzero(visited_B)))
    if config.label_smoothing:
        smoothing = config.label_smoothing
        parts = [(rows_N, moves_N, (1 - smoothing) * shares) for rows_N, moves_N, shares in parts]
        rows_N, moves_N = _list_legal(preset, batch, has_target_B)
        counts_B = np.bincount(rows_N, minlength=len(labels_B))
        parts.append((rows_N, moves_N, smoothing / counts_B[rows_N]))
    moves_BK, shares_BK = _pad_targets(
        len(labels_B), *map(np.concatenate, zip(*parts, strict=True))
    )
    return {
        "label": label_B,
        "policy_moves": moves_BK,
        "policy_shares": shares_BK,
        "policy_weight": _float(has_target_B),
    }


def _list_visits(
    config: TrainConfig, preset: Preset, batch: Batch, visited: NDArray[np.intp]
) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Return rows, moves and shares `[N]` of visits, sharpened by `visits_temperature`.

    `visited` are the numbers of the rows. Each row of the column `visits` is a list of records with
    `label` and `share`. Moves with share 0 are left out. Promotions are to a queen.
    """
    visits = batch["visits"][visited]
    rows_N = np.repeat(visited, [len(moves) for moves in visits])
    records_N = np.concatenate(list(visits))
    is_visited_N = records_N["share"] > 0
    rows_N, records_N = rows_N[is_visited_N], records_N[is_visited_N]
    _check_legal(batch, rows_N, records_N["label"].astype(np.int64))
    powers_N = records_N["share"].astype(np.float64) ** (1 / config.visits_temperature)
    sums_B = np.bincount(rows_N, weights=powers_N, minlength=len(batch["planes"]))
    return rows_N, index_labels(preset, records_N["label"]), powers_N / sums_B[rows_N]


def _list_legal(
    preset: Preset, batch: Batch, rows_B: NDArray[np.bool_]
) -> tuple[NDArray[np.intp], NDArray[np.int64]]:
    """Return row numbers and logit indices `[N]` of all legal moves in the rows of a mask."""
    rows_N, labels_N = np.nonzero(legal_mask(batch["planes"]) & rows_B[:, None])
    moves_N = index_labels(preset, labels_N)
    if not vocabulary(preset.moves).under_promotions:
        return rows_N, moves_N
    pawns_N = batch["planes"][rows_N, 0] & np.uint64(0xFF00)  # on the seventh rank
    promotes_N = (pawns_N >> (labels_N % 64).astype(np.uint64)) & np.uint64(1) != 0
    labels_N, pieces = np.tile(labels_N[promotes_N], 3), np.repeat((2, 3, 4), promotes_N.sum())
    under_N = index_labels(preset, labels_N, pieces)
    rows_N = np.concatenate((rows_N, np.tile(rows_N[promotes_N], 3)))
    return rows_N, np.concatenate((moves_N, under_N))


def _check_legal(batch: Batch, rows_N: NDArray[Any], labels_N: NDArray[np.int64]) -> None:
    words_N = batch["planes"][rows_N, MOVE_PLANES + np.minimum(labels_N // 64, 63)]
    legal_N = (words_N >> (labels_N % 64).astype(np.uint64)) & np.uint64(1) != 0
    if not legal_N.all():
        raise IllegalTargetError(
            f"{int((~legal_N).sum())} of {len(legal_N)} labels are not legal moves of their "
            "positions: ingest the data again"
        )


def _pad_targets(
    rows: int, rows_N: NDArray[Any], moves_N: NDArray[Any], shares_N: NDArray[Any]
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Return moves and shares as `[B, K]`; K is a power of four, to limit the number of shapes."""
    order_N = np.argsort(rows_N, kind="stable")
    rows_N, moves_N, shares_N = rows_N[order_N], moves_N[order_N], shares_N[order_N]
    counts_B = np.bincount(rows_N, minlength=rows)
    max_moves = max(1, int(counts_B.max(initial=0)))
    width = 4 ** math.ceil(math.log(max_moves, 4) - 1e-9)
    columns_N = np.arange(len(rows_N)) - (np.cumsum(counts_B) - counts_B)[rows_N]
    moves_BK = np.zeros((rows, width), dtype=np.int64)
    shares_BK = np.zeros((rows, width), dtype=np.float32)
    moves_BK[rows_N, columns_N], shares_BK[rows_N, columns_N] = moves_N, shares_N
    return moves_BK, shares_BK


def _resolve_value(config: TrainConfig, preset: Preset, batch: Batch) -> Columns:
    """Return the value targets: a weighted mix of results, evaluations and search values."""
    has_eval_B = has_search_B = np.zeros(len(batch["result"]), np.bool_)
    has_game_B = batch["plies"] > 0 if "plies" in batch else ~has_eval_B
    has_result_B = has_game_B & config.results
    target_B3 = np.eye(3)[1 - batch["result"].astype(np.int64)]

    if config.eval_blend and "eval" in batch:
        has_eval_B = batch["eval"] != NO_EVAL
        share_B = np.where(has_result_B, config.eval_blend, 1.0) * has_eval_B
        target_B3 = _interpolate(target_B3, wdl_from_centipawns(batch["eval"]), share_B)
    if config.learns_search_values and config.search_value_share and "root_value" in batch:
        values_B = batch["root_value"]
        if "best_value" in batch:  # more accurate than the mean over all simulations
            values_B = np.where(np.isnan(batch["best_value"]), values_B, batch["best_value"])
        has_search_B = ~np.isnan(values_B)
        has_usual_B = has_game_B & (has_result_B | has_eval_B)
        share_B = np.where(has_usual_B, config.search_value_share, 1.0) * has_search_B
        target_B3 = _interpolate(target_B3, wdl_from_score(np.nan_to_num(values_B)), share_B)
    has_target_B = (has_result_B | has_eval_B | has_search_B) & (preset.value != "none")
    return {"value_target": _float(target_B3), "value_weight": _float(has_target_B)}


def _interpolate(
    first_B3: NDArray[Any], second_B3: NDArray[Any], share_B: NDArray[Any]
) -> NDArray[Any]:
    mixed_B3: NDArray[Any] = first_B3 + share_B[:, None] * (second_B3 - first_B3)
    return mixed_B3


def _sigmoid(x_B: NDArray[np.float64]) -> NDArray[np.float64]:
    sigmoid_B: NDArray[np.float64] = 1 / (1 + np.exp(-x_B))
    return sigmoid_B


def wdl_from_centipawns(evals_B: NDArray[np.integer]) -> NDArray[np.float64]:
    """Convert centipawns for the side to move to probabilities of win, draw, loss `[B, 3]`.

    The model is Stockfish's (github.com/official-stockfish/WDL_model): a win has probability
    1 / (1 + exp((margin - cp) / slope)), a loss the same for -cp, and a draw the rest. Centipawns
    are clipped to EVAL_LIMIT.
    """
    cp_B = evals_B.astype(np.float64).clip(-EVAL_LIMIT, EVAL_LIMIT)
    win_B = _sigmoid((cp_B - EVAL_MARGIN) / EVAL_SLOPE)
    loss_B = _sigmoid((-cp_B - EVAL_MARGIN) / EVAL_SLOPE)
    return np.stack((win_B, 1 - win_B - loss_B, loss_B), 1)


def wdl_from_score(scores_B: NDArray[np.floating]) -> NDArray[np.float64]:
    """Convert scores, win - loss in -1..1, to win, draw, loss `[B, 3]`.

    This inverts `wdl_from_centipawns`. With x = cp / slope and c = cosh(margin / slope), the score
    is sinh x / (cosh x + c), a quadratic equation in exp x. It is solved for the side that is
    ahead, which avoids cancellation.
    """
    margin = EVAL_MARGIN / EVAL_SLOPE
    sizes_B = np.abs(scores_B.astype(np.float64)).clip(max=1 - 1e-6)
    shifted_B = sizes_B * math.cosh(margin)
    x_B = np.log((shifted_B + np.sqrt(shifted_B**2 + 1 - sizes_B**2)) / (1 - sizes_B))
    better_B, worse_B = _sigmoid(x_B - margin), _sigmoid(-x_B - margin)
    is_ahead_B = scores_B >= 0
    win_B = np.where(is_ahead_B, better_B, worse_B)
    loss_B = np.where(is_ahead_B, worse_B, better_B)
    return np.stack((win_B, 1 - win_B - loss_B, loss_B), 1)
