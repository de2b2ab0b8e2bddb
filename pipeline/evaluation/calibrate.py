"""Fit the correction of a network's policy by a search, for each rating, on held-out positions.

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

RATINGS = (1100, 1400, 1800, 2200, 2600)
"""Ratings of a curve. At the first and below, the weight is 0, because a search did not help."""
STRENGTH_FACTORS = (1.0, 1.1, 1.6, 3.3, 5.4)
STRENGTH_SHARPNESS = (1.1, 1.05, 1.05, 1.3, 1.8)
"""Factors on the weights, and powers of the policy, at RATINGS. With them, sampled moves lose as
much as human moves according to Stockfish."""
BATCH = 256
MIN_POWER = 0.01
"""Minimum power of the policy: without it, fits to a few positions of random games may reach 0."""
PADDING_LOG_PROBABILITY = -1e9
"""Log-probability of the padding after a row's last move."""


class Fit(NamedTuple):
    """Inputs of the fit: R positions, with moves padded to the largest number M of legal moves."""

    ratings: NDArray[np.int64]  # [R]
    policies: NDArray[np.float64]  # [R, M] log-probabilities
    values: NDArray[np.float64]  # [R, M]
    played: NDArray[np.int64]  # [R] index of the move played


def collect(
    evaluator: Any,
    positions: Path,
    split: str,
    rows: int,
    simulations: int,
    progress: Progress,
    stop: Stop,
) -> Fit:
    """Search `rows` random positions of a split; return those with a known rating and move."""
    columns = (*HUMAN_COLUMNS, *EARLIER_MOVES)
    batches = Batches([positions], split, batch_size=BATCH, columns=columns)
    wanted, done, found = min(rows, batches.rows), 0, list[tuple[Any, ...]]()
    for batch in batches.sample(wanted):
        logits_BA, wdl_B3 = evaluator(batch["planes"], batch)
        for part, roots, results in search_rows(evaluator, batch, logits_BA, wdl_B3, simulations):
            ratings, labels = batch["elo"][part].tolist(), batch["label"][part].tolist()
            found += [
                _row(rating, label, root, result)
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
    return Fit(np.array(ratings), policy_RM, values_RM, np.array(played))


def _row(rating: int, label: int, root: HumanRoot, found: Root) -> tuple[Any, ...]:
    """Return the rating, the moves' log-probabilities and values, and the played move's index."""
    labels = np.unique(found.labels)
    logits = root.logits[labels].astype(np.float64)
    logits -= logits.max()
    policy = logits - np.log(np.exp(logits).sum())
    return rating, policy, move_values(root, found)[labels], int(np.flatnonzero(labels == label)[0])


def fit_correction(fit: Fit) -> tuple[list[float], list[float]]:
    """Fit the weights of the values and the powers of the policy at RATINGS by maximum likelihood.

    The first weight is 0. The likelihood is concave in weights and powers. To keep weights
    non-negative and powers positive, the fit uses the square roots of weights and the logarithms of
    powers. Ratings outside the range of the data get the nearest fitted value.
    """
    import torch

    shares_RK = torch.from_numpy(
        np.stack([np.interp(fit.ratings, RATINGS, one) for one in np.eye(len(RATINGS))], 1)
    )
    policy_RM, values_RM, played_R = (torch.from_numpy(part) for part in fit[1:])
    roots_K = torch.ones(len(RATINGS) - 1, dtype=torch.float64, requires_grad=True)
    logs_K = torch.zeros(len(RATINGS), dtype=torch.float64, requires_grad=True)
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
    nearest_K = [int(fitted[np.abs(fitted - knot).argmin()]) for knot in range(len(RATINGS))]
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
    """Fit a checkpoint's corrections on a held-out split, and store them in its card.

    Returns the stored entry, and the cross-entropy on the same rows with and without the search, in
    nats. Raises CheckpointError, DatasetError, ConfigError, and Stopped, in which case nothing is
    stored.
    """
    from model.checkpoint import read_card, save_human_search
    from model.inference.evaluator import evaluator
    from model.inference.onnx_evaluator import find_export

    identity = read_card(checkpoint)["files"]["weights"]["sha256"]
    network = find_export(checkpoint) or evaluator(checkpoint)
    fit = collect(network, positions, split, rows, simulations, progress, stop)
    weights_K, sharpness_K = fit_correction(fit)
    strong_K = [one * more for one, more in zip(weights_K, STRENGTH_FACTORS, strict=True)]
    entry: dict[str, Any] = {"simulations": simulations}
    for aim, weights, sharpness in (
        ("likelihood", weights_K, sharpness_K),
        ("strength", [round(one, 3) for one in strong_K], list(STRENGTH_SHARPNESS)),
    ):
        entry[aim] = {"ratings": list(RATINGS), "weights": weights, "sharpness": sharpness}
    save_human_search(checkpoint, identity, entry)
    return entry | {
        "positions": len(fit.ratings),
        "cross_entropy": cross_entropy(fit, [0.0] * len(RATINGS), [1.0] * len(RATINGS)),
        "searched_cross_entropy": cross_entropy(fit, weights_K, sharpness_K),
    }


def cross_entropy(fit: Fit, weights_K: Sequence[float], sharpness_K: Sequence[float]) -> float:
    """Return the cross-entropy of human moves under the corrected policies, in nats."""
    weight_R = np.interp(fit.ratings, RATINGS, weights_K)
    sharpness_R = np.interp(fit.ratings, RATINGS, sharpness_K)
    logits_RM = sharpness_R[:, None] * fit.policies + weight_R[:, None] * fit.values
    logits_RM -= logits_RM.max(axis=1, keepdims=True)
    chosen_R = np.take_along_axis(logits_RM, fit.played[:, None], axis=1)[:, 0]
    return float((np.log(np.exp(logits_RM).sum(axis=1)) - chosen_R).mean())
