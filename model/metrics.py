"""Accuracy metrics of a network: per row, and their means.

Axes: B batch, A label. Win, draw and loss are in that order, for the side to move. The score of a
game is 1, 1/2 or 0.

rank           rank of the played move among legal moves, from 1; equal logits are ranked by label,
               so that a constant policy gets no credit
nll            negative log-likelihood of the played move among legal moves, in nats
legal_mass     total probability of the legal moves before masking
expected       expected score, win + draw / 2
brier          (expected - score)^2, the two-outcome form; its mean is `value_brier`
wdl_brier      the sum over win, draw and loss of (probability - outcome)^2, 0 to 2

The score and both Brier scores are NaN in rows without a game, and means skip these rows.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from model.data.rows import Batch, to_bytes
from model.network.decoder import legal_labels
from model.network.encoder import to_tensor

Columns = dict[str, NDArray[Any]]


def row_metrics(
    logits_BA: Tensor,
    wdl_B3: Tensor,
    legal_BA: Tensor,
    labels_B: Tensor,
    results_B: Tensor,
    has_game_B: Tensor | None = None,
) -> dict[str, Tensor]:
    """Return each row's metrics by the names above and its number of `legal_moves`, `[B]`.

    `rank` and `legal_moves` are int64, all others float32. Logits, legality and labels must use the
    same view; results are +1, 0, -1 for the side to move. `has_game_B` is False for rows without a
    game; None means that every row has one.
    """
    logits_BA = logits_BA.float()
    masked_BA = logits_BA.masked_fill(~legal_BA, float("-inf"))
    played_B1 = masked_BA.gather(1, labels_B[:, None])
    before_BA = torch.arange(logits_BA.shape[1], device=labels_B.device) < labels_B[:, None]
    better_BA = (masked_BA > played_B1) | ((masked_BA == played_B1) & before_BA)
    legal_B = torch.logsumexp(masked_BA, 1)
    metrics = {
        "rank": 1 + (better_BA & legal_BA).sum(1),
        "legal_moves": legal_BA.sum(1),
        "nll": legal_B - played_B1[:, 0],
        "legal_mass": torch.exp(legal_B - torch.logsumexp(logits_BA, 1)),
        **value_metrics(wdl_B3, results_B),
    }
    if has_game_B is not None:
        for name in ("score", "brier", "wdl_brier"):
            metrics[name] = metrics[name].masked_fill(~has_game_B, float("nan"))
    return metrics


def value_metrics(wdl_B3: Tensor, results_B: Tensor) -> dict[str, Tensor]:
    """Return `expected`, `score`, `brier` and `wdl_brier` of each row, float32 `[B]` each."""
    outcome_B3 = torch.nn.functional.one_hot(1 - results_B, 3).float()
    expected_B = wdl_B3[:, 0] + wdl_B3[:, 1] / 2
    score_B = (results_B + 1).float() / 2
    return {
        "expected": expected_B,
        "score": score_B,
        "brier": (expected_B - score_B).square(),
        "wdl_brier": (wdl_B3 - outcome_B3).square().sum(1),
    }


def output_metrics(
    logits_BA: NDArray[np.float32], wdl_B3: NDArray[np.float32], batch: Batch
) -> Columns:
    """Return the metrics of each row of an evaluator's output, arrays `[B]`."""
    metrics = row_metrics(
        to_tensor(logits_BA),
        to_tensor(wdl_B3),
        legal_labels(to_bytes(batch["planes"])),
        to_tensor(batch["label"].astype(np.int64)),
        to_tensor(batch["result"].astype(np.int64)),
        to_tensor(batch["plies"] > 0) if "plies" in batch else None,
    )
    return {name: column.numpy() for name, column in metrics.items()}


class Totals:
    """Sums of metrics over rows, in float64."""

    def __init__(self) -> None:
        self.count = self.games = 0
        self.sums: dict[str, float] = {}

    def add(self, metrics: Mapping[str, NDArray[Any] | Tensor]) -> "Totals":
        """Add the rows of one batch and return these totals."""
        columns = {name: np.asarray(column) for name, column in metrics.items()}
        rank, has_game = columns["rank"], ~np.isnan(columns["brier"])
        self.count, self.games = self.count + len(rank), self.games + int(has_game.sum())
        terms: dict[str, NDArray[Any]] = {f"top{n}": rank <= n for n in (1, 3, 5)}
        terms |= {"cross_entropy": columns["nll"], "legal_mass": columns["legal_mass"]}
        terms["value_brier"] = columns["brier"][has_game]
        terms["wdl_brier"] = columns["wdl_brier"][has_game]
        for name, term in terms.items():
            self.sums[name] = self.sums.get(name, 0.0) + float(term.sum(dtype=np.float64))
        return self

    def summary(self) -> dict[str, float]:
        """Return the number of `positions` and the means over them.

        The means are `top1`, `top3`, `top5`, `cross_entropy` and `legal_mass`, and over the rows
        with a game `value_brier` and `wdl_brier`. Means over no rows are left out.
        """
        means: dict[str, float] = {"positions": self.count}
        for name, total in self.sums.items():
            count = self.games if name.endswith("brier") else self.count
            means |= {name: total / count} if count else {}
        return means


def average_metrics(metrics: Mapping[str, NDArray[Any]]) -> dict[str, float]:
    """Return the number of rows and the means of their metrics, as `Totals.summary` does."""
    return Totals().add(metrics).summary()
