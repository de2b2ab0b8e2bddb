"""Fit how much a search should correct a network's policy at each rating, to predict human moves.

The corrected policy is proportional to policy^power * exp(weight * value of the move). The weight
and the power are linear between the ratings of CURVE_RATINGS.

Axes: R rows, M legal moves of a row, K ratings of a curve.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from engine.encoding.views import NO_LABEL
from engine.progress import Progress, Stop, Tick, never, silent
from engine.search.human import HumanRoot, move_values
from engine.search.results import Root
from pipeline.dataset.batches import HUMAN_COLUMNS, Batches
from pipeline.dataset.files.columns import EARLIER_MOVES
from pipeline.errors import ConfigError, Stopped
from pipeline.evaluation.human_search import search_rows

CURVE_RATINGS = (1100, 1400, 1800, 2200, 2600)
"""Ratings of a curve. Up to the first one, the weight is 0, because a search did not help."""
STRENGTH_FACTORS = (1.0, 1.1, 1.6, 3.3, 5.4)
STRENGTH_SHARPNESS = (1.1, 1.05, 1.05, 1.3, 1.8)
"""Factors on the fitted weights, and powers of the policy, at CURVE_RATINGS, for the aim
"strength". With them, moves drawn from the corrected policy lose as much as human moves do,
according to Stockfish."""
BATCH_ROWS = 256
"""Positions that are read and searched together."""
MIN_POWER = 0.01
"""Minimum power of the policy: a fit to a few positions of random games may reach 0 without it."""
PADDING_LOG_PROBABILITY = -1e9
"""Log-probability of the padding after a row's last move."""


class PlayedMoves(NamedTuple):
    """R positions with their searched values; moves are padded to the largest number M of a row."""

    ratings: NDArray[np.int64]  # [R]
    policies: NDArray[np.float64]  # [R, M] log-probabilities
    values: NDArray[np.float64]  # [R, M] values by the search, for the mover
    played: NDArray[np.int64]  # [R] index of the move played, below M


def collect_moves(
    evaluator: Any,
    positions: Path,
    split: str,
    rows: int,
    simulations: int,
    progress: Progress,
    stop: Stop,
) -> PlayedMoves:
    """Search up to `rows` random positions; return those with a known rating and move.

    Raises ConfigError if there are none, and Stopped.
    """
    columns = (*HUMAN_COLUMNS, *EARLIER_MOVES)
    batches = Batches([positions], split, batch_size=BATCH_ROWS, columns=columns)
    wanted, done, found = min(rows, batches.rows), 0, list[tuple[Any, ...]]()
    for batch in batches.sample(wanted):
        logits_BA, wdl_B3 = evaluator(batch["planes"], batch)
        for part, roots, results in search_rows(evaluator, batch, logits_BA, wdl_B3, simulations):
            ratings, labels = batch["elo"][part].tolist(), batch["label"][part].tolist()
            found += [
                _describe_position(rating, label, root, result)
                for rating, label, root, result in zip(ratings, labels, roots, results, strict=True)
                if rating and label != NO_LABEL
            ]
        done += len(batch["planes"])
        progress(Tick(done, wanted, "positions"))
        if stop():
            raise Stopped(
                f"stopped after {done:,} positions; nothing is stored before the fit is complete"
            )
    if not found:
        raise ConfigError(
            f"no position of {positions} has a known rating and move: use a dataset of rated games"
        )
    ratings, policies, values, played = zip(*found, strict=True)
    shape = len(found), max(map(len, policies))
    policy_RM, values_RM = np.full(shape, PADDING_LOG_PROBABILITY), np.zeros(shape)
    for row, moves in enumerate(map(len, policies)):
        policy_RM[row, :moves], values_RM[row, :moves] = policies[row], values[row]
    return PlayedMoves(np.array(ratings), policy_RM, values_RM, np.array(played))


def _describe_position(rating: int, label: int, root: HumanRoot, found: Root) -> tuple[Any, ...]:
    """Return the rating, log-probabilities and values of the moves, and the played one's index."""
    labels = np.unique(found.labels)
    logits = root.logits[labels].astype(np.float64)
    logits -= logits.max()
    policy = logits - np.log(np.exp(logits).sum())
    return rating, policy, move_values(root, found)[labels], int(np.flatnonzero(labels == label)[0])


def fit_correction(fit: PlayedMoves) -> tuple[list[float], list[float]]:
    """Return the weights and the powers at CURVE_RATINGS that make the moves played most likely.

    The first weight is 0. The likelihood is concave in weights and powers. To keep weights
    non-negative and powers positive, the fit uses the square roots of weights and the logarithms of
    powers. Ratings outside the range of the data get the nearest fitted value.
    """
    import torch

    knots = len(CURVE_RATINGS)
    shares_RK = torch.from_numpy(
        np.stack([np.interp(fit.ratings, CURVE_RATINGS, basis) for basis in np.eye(knots)], 1)
    )
    policy_RM, values_RM, played_R = (torch.from_numpy(part) for part in fit[1:])
    roots_K = torch.ones(knots - 1, dtype=torch.float64, requires_grad=True)
    logs_K = torch.zeros(knots, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([roots_K, logs_K], max_iter=200, line_search_fn="strong_wolfe")

    def loss() -> Any:
        optimizer.zero_grad()
        weight_R1 = shares_RK[:, 1:] @ roots_K[:, None].square()
        logits_RM = (shares_RK @ logs_K[:, None].exp()) * policy_RM + weight_R1 * values_RM
        value = torch.nn.functional.cross_entropy(logits_RM, played_R)
        value.backward()  # type: ignore[no-untyped-call]
        return value

    optimizer.step(loss)  # type: ignore[no-untyped-call]
    weights_K = [0.0, *(round(float(root) ** 2, 3) for root in roots_K.detach())]
    powers_K = [max(MIN_POWER, round(float(power), 3)) for power in logs_K.detach().exp()]
    fitted = np.flatnonzero((shares_RK.sum(0) > 0).numpy())
    nearest_K = [int(fitted[np.abs(fitted - knot).argmin()]) for knot in range(knots)]
    weights_K = [0.0, *(weights_K[knot] for knot in nearest_K[1:])]
    return weights_K, [powers_K[knot] for knot in nearest_K]


def calibrate(
    checkpoint: Path,
    positions: Path,
    *,
    split: str,
    rows: int,
    simulations: int,
    progress: Progress = silent,
    stop: Stop = never,
) -> dict[str, Any]:
    """Fit a checkpoint's corrections on a split of a dataset, and store them in its card.

    Returns the stored entry, the number of positions, and the cross-entropy on them with and
    without the search, in nats. Raises CheckpointError, DatasetError, ConfigError and Stopped;
    after an error, nothing is stored.
    """
    from model.checkpoint import read_card, save_human_search
    from model.inference.evaluator import evaluator
    from model.inference.onnx_evaluator import find_export

    identity = read_card(checkpoint)["files"]["weights"]["sha256"]
    network = find_export(checkpoint) or evaluator(checkpoint)
    fit = collect_moves(network, positions, split, rows, simulations, progress, stop)
    weights_K, sharpness_K = fit_correction(fit)
    strong_K = [
        round(weight * factor, 3)
        for weight, factor in zip(weights_K, STRENGTH_FACTORS, strict=True)
    ]
    entry: dict[str, Any] = {"simulations": simulations}
    for aim, weights, sharpness in (
        ("likelihood", weights_K, sharpness_K),
        ("strength", strong_K, list(STRENGTH_SHARPNESS)),
    ):
        entry[aim] = {"ratings": list(CURVE_RATINGS), "weights": weights, "sharpness": sharpness}
    save_human_search(checkpoint, identity, entry)
    return entry | {
        "positions": len(fit.ratings),
        "cross_entropy": cross_entropy(fit, [0.0] * len(CURVE_RATINGS), [1.0] * len(CURVE_RATINGS)),
        "searched_cross_entropy": cross_entropy(fit, weights_K, sharpness_K),
    }


def cross_entropy(
    fit: PlayedMoves, weights_K: Sequence[float], sharpness_K: Sequence[float]
) -> float:
    """Return the cross-entropy of the moves played under the corrected policies, in nats."""
    weight_R = np.interp(fit.ratings, CURVE_RATINGS, weights_K)
    sharpness_R = np.interp(fit.ratings, CURVE_RATINGS, sharpness_K)
    logits_RM = sharpness_R[:, None] * fit.policies + weight_R[:, None] * fit.values
    logits_RM -= logits_RM.max(axis=1, keepdims=True)
    chosen_R = np.take_along_axis(logits_RM, fit.played[:, None], axis=1)[:, 0]
    return float((np.log(np.exp(logits_RM).sum(axis=1)) - chosen_R).mean())
