"""Baselines that are fitted on train: a logistic regression on move features, and what was played in the same position.

`Logistic` is McFadden's conditional logit (1974): a move's probability among the legal ones of its position is the softmax
of a weighted sum of what `encode_features` says of it (captures, exchanges, threats, checks, mates: no board), plus a weight
for the square it leaves and one for the square it reaches. `Book` counts the moves of train in each position, and adds
PRIOR plays that are shared out as the regression says; positions that train does not hold are the regression's alone.

Axes: B rows of a batch, R rows, M legal moves of all rows, K encoded features, A label (4096).
"""

import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.encoding.planes import LABELS
from engine.evaluation.move_features import TARGET, legal_move_features
from engine.progress import Progress, Tick
from model.network.move_head import encode_features
from pipeline.dataset.batches import Batches
from pipeline.dataset.files.shards import Batch
from pipeline.dataset.position_keys import KEYED_BY, position_keys
from pipeline.dataset.training_set import Shard, row_groups, split_shards

ROWS = 50_000
"""Rows of train that the regression is fitted on: it has 154 weights."""
ITERATIONS = 100
"""Most iterations of L-BFGS."""
RIDGE = 1e-6
"""Of the squared weights in the loss, so that weights that change nothing are 0."""
PRIOR = 2.0
"""Plays that the regression is worth beside those counted in a position."""
FULL = 1 << 22
"""Plays that are counted together."""


class Moves(NamedTuple):
    """The legal moves of rows; squares are in the mover's view."""

    places: Tensor
    """row * 4096 + label, [M]; `features` are [M, K], all others [M]."""
    rows: Tensor
    features: Tensor
    sources: Tensor
    targets: Tensor


def moves_of(planes_BP: NDArray[np.uint64]) -> Moves:
    """Return the legal moves of rows with their features."""
    found = legal_move_features(planes_BP)
    facts_MF, places_M = torch.from_numpy(found["facts"]), torch.from_numpy(found["moves"])
    return Moves(places_M, places_M // LABELS, encode_features(facts_MF), places_M % 64, facts_MF[:, TARGET].long())


class Logistic:
    """A conditional logit of moves; `weights` are those of features, from-squares and to-squares, one after the other."""

    def __init__(self, weights: Tensor) -> None:
        self.weights = weights

    def scores(self, moves: Moves) -> Tensor:
        """Return the score of each move, [M]."""
        of_features, of_sources, of_targets = self.weights[:-128], self.weights[-128:-64], self.weights[-64:]
        return moves.features @ of_features + of_sources[moves.sources] + of_targets[moves.targets]

    def __call__(self, planes_BP: NDArray[np.uint64]) -> NDArray[np.float32]:
        """Return logits [B, A] of the legal moves, minus infinity of the others."""
        moves = moves_of(planes_BP)
        logits = np.full((len(planes_BP), LABELS), -np.inf, dtype=np.float32)
        logits.reshape(-1)[moves.places.numpy()] = self.scores(moves).numpy()
        return logits


def mean_nll(scores_M: Tensor, moves: Moves, played_R: Tensor) -> Tensor:
    """Return the mean over rows of minus the log-probability of the move played; `played_R` are places among the moves."""
    rows_M, rows = moves.rows, len(played_R)
    highest_R = torch.full((rows,), -torch.inf).scatter_reduce(0, rows_M, scores_M.detach(), "amax")
    total_R = torch.zeros(rows).index_add(0, rows_M, torch.exp(scores_M - highest_R[rows_M]))
    return (torch.log(total_R) + highest_R - scores_M[played_R]).mean()


def fit(batches: Iterable[Batch], iterations: int = ITERATIONS) -> Logistic:
    """Fit a regression to the moves (`label`) of rows by L-BFGS."""
    rows = list(batches)
    planes_RP = np.concatenate([batch["planes"] for batch in rows])
    moves = moves_of(planes_RP)
    label_R = np.concatenate([batch["label"] for batch in rows]).astype(np.int64)
    wanted_R = torch.from_numpy(np.arange(len(label_R)) * LABELS + label_R)
    played_R = torch.searchsorted(moves.places, wanted_R)
    found = Logistic(torch.zeros(moves.features.shape[1] + 128, requires_grad=True))
    optimizer = torch.optim.LBFGS([found.weights], max_iter=iterations, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimizer.zero_grad()
        value = mean_nll(found.scores(moves), moves, played_R) + RIDGE * found.weights.square().sum()
        value.backward()  # type: ignore[no-untyped-call]
        return value

    optimizer.step(loss)  # type: ignore[no-untyped-call]
    found.weights = found.weights.detach()
    return found


class Book:
    """How often each move was played in train in some positions."""

    def __init__(self, keys: NDArray[np.uint64], shards: Sequence[Shard], progress: Progress) -> None:
        """Count the plays of the shards in the positions of these keys (pipeline.dataset.position_keys)."""
        self.keys = np.unique(keys)
        self.plays = np.zeros(0, dtype=np.int64)
        """Places of keys * 4096 + label, ascending."""
        self.counts = np.zeros(0, dtype=np.int64)
        total, done, pending = sum(shard.rows or 0 for shard in shards), 0, list[NDArray[np.int64]]()
        for rows in row_groups(shards, ("label", *KEYED_BY)):
            known_R, place_R = self._places(position_keys(rows["planes"], rows["castling"]))
            pending.append((place_R * LABELS + rows["label"].astype(np.int64))[known_R])
            if sum(map(len, pending)) > FULL:
                self._count(pending)
                pending = []
            done += len(known_R)
            progress(Tick(done, total, "positions of train"))
        self._count(pending)

    def _count(self, pending: Sequence[NDArray[np.int64]]) -> None:
        """Add plays to the counts."""
        new, counts = np.unique(np.concatenate([np.zeros(0, dtype=np.int64), *pending]), return_counts=True)
        self.plays, back = np.unique(np.concatenate([self.plays, new]), return_inverse=True)
        self.counts = np.bincount(back, weights=np.concatenate([self.counts, counts])).astype(np.int64)

    def _places(self, keys_R: NDArray[np.uint64]) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
        """Return which keys are asked for, and where they are among those."""
        place_R = np.searchsorted(self.keys, keys_R).clip(max=max(len(self.keys) - 1, 0))
        return self.keys[place_R] == keys_R, place_R

    def logits(self, batch: Batch, fallback_BA: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return log(plays + PRIOR * p) with p of `fallback_BA`, logits of the legal moves; minus infinity of the others."""
        known_B, place_B = self._places(position_keys(batch["planes"], batch["castling"]))
        weights_BA = np.exp(fallback_BA - fallback_BA.max(axis=1, keepdims=True), dtype=np.float64)
        weights_BA *= PRIOR / weights_BA.sum(axis=1, keepdims=True)
        for row in np.flatnonzero(known_B).tolist():
            mine = slice(*np.searchsorted(self.plays, (place_B[row] * LABELS, (place_B[row] + 1) * LABELS)))
            weights_BA[row, self.plays[mine] % LABELS] += self.counts[mine]
        with np.errstate(divide="ignore"):
            logits_BA: NDArray[np.float32] = np.log(weights_BA).astype(np.float32)
        return logits_BA


class Fitted:
    """Both baselines; `words` say how they were made."""

    def __init__(self, train: Sequence[Path], keys: NDArray[np.uint64], progress: Progress) -> None:
        """Fit them on the train splits of datasets; positions of these keys are looked up there."""
        batches = Batches(train, "train", columns=("planes", "label"))
        begin = time.perf_counter()
        self.logistic = fit(batches.drawn(ROWS))
        between = time.perf_counter()
        self.book = Book(keys, [shard for path in train for shard in split_shards(path, "train")], progress)
        seconds = between - begin, time.perf_counter() - between
        self.words = (
            f"logistic regression: {len(self.logistic.weights)} weights, {min(ROWS, batches.rows):,} rows of train, "
            f"{seconds[0]:.1f} s; same position: {self.book.counts.sum():,} plays in these positions among "
            f"{batches.rows:,} rows of train, {seconds[1]:.1f} s"
        )

    def __call__(self, batch: Batch) -> dict[str, NDArray[np.float32]]:
        """Return the logits [B, A] of each baseline by the name of its columns in measured rows."""
        logits_BA = self.logistic(batch["planes"])
        return {"logistic": logits_BA, "book": self.book.logits(batch, logits_BA)}
