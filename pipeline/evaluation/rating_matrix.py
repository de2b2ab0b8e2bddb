"""Measure whether a network predicts players of a rating best if it is given this rating.

Each position is evaluated once for each of CONDITIONS, the ratings that the network is given.

Axes: R rows of the sample, T conditions (CONDITIONS).
"""

import itertools
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from engine.progress import Progress, Tick
from pipeline.dataset.files.columns import BATCH_SENTINELS
from pipeline.dataset.files.shards import Batch
from pipeline.dataset.hashing import splitmix64
from pipeline.dataset.strata import assign_rating_bands, name_bands
from pipeline.evaluation.figures import clustered_mean

if TYPE_CHECKING:
    import polars as pl

    from model.inference.evaluator import NetworkEvaluator

BAND_EDGES = tuple(range(800, 2601, 200))
"""Boundaries of the bands of the mover's rating: 11 bands, open at both ends."""
BAND_CENTERS = (
    BAND_EDGES[0] - 100,
    *((low + high) // 2 for low, high in itertools.pairwise(BAND_EDGES)),
    BAND_EDGES[-1] + 100,
)
"""Rating that represents each band."""
RATING_COLUMNS = ("elo", "opponent_elo")
TRUE_RATINGS, UNKNOWN_RATINGS = -1, BATCH_SENTINELS["elo"]
"""Conditions besides BAND_CENTERS: the players' own ratings, and unknown ratings."""
CONDITIONS = (*BAND_CENTERS, TRUE_RATINGS, UNKNOWN_RATINGS)
"""Ratings that the network is given for both players."""
BATCH_ROWS = 1024
"""Positions that are evaluated together."""


def choose_by_band(table: "pl.DataFrame", count: int) -> list[int]:
    """Return the row numbers of up to `count` positions for each rating band, lowest band first.

    Rows of unknown rating are left out. A hash of game and ply chooses the rows, so the sample does
    not depend on their order, and a smaller sample is part of a larger one.
    """
    game_R, ply_R = (table[name].to_numpy().astype(np.uint64) for name in ("game", "ply"))
    hash_R = splitmix64(game_R ^ splitmix64(ply_R))
    band_R = assign_rating_bands(table["elo"].to_numpy(), BAND_EDGES)
    order_R = np.lexsort((hash_R, band_R))
    bands = (order_R[band_R[order_R] == band][:count] for band in range(len(BAND_CENTERS)))
    chosen: list[int] = np.concatenate(list(bands)).tolist()
    return chosen


def measure_matrix(
    network: "NetworkEvaluator", rows: Batch, game_R: NDArray[np.uint64], progress: Progress
) -> dict[str, Any]:
    """Return top-1 and mean log-likelihood of human moves, by rating band and given rating.

    `ratings` are the given ratings. Each of `rows` is a band of the players' ratings. It has lists
    `log_likelihood` and `top1` by given rating, and the same figures under the players' own ratings
    (`true_*`) and unknown ones (`unknown_*`). `best` is the given rating with the highest
    likelihood, and `other` the best one apart from the band's own (`rating`).

    `lead` is the log-likelihood under the band's own rating minus that under `other`, in nats per
    move, with its interval by games. `other` is chosen on the same rows, which biases the lead
    downward. `verdict` sums up the lead and its interval in a word.
    """
    from model.metrics import output_metrics

    count, band_R = len(game_R), assign_rating_bands(rows["elo"], BAND_EDGES)
    nll_TR, hit_TR = np.zeros((2, len(CONDITIONS), count))
    for begin in range(0, count, BATCH_ROWS):
        part = slice(begin, begin + BATCH_ROWS)
        batch = {name: values[part] for name, values in rows.items()}
        for number, condition in enumerate(CONDITIONS):
            names = RATING_COLUMNS if condition != TRUE_RATINGS else ()
            given = {name: np.full_like(batch[name], condition) for name in names}
            figures = output_metrics(*network(batch["planes"], batch | given), batch)
            nll_TR[number, part], hit_TR[number, part] = figures["nll"], figures["rank"] == 1
        done = min(begin + BATCH_ROWS, count) * len(CONDITIONS)
        progress(Tick(done, count * len(CONDITIONS), "evaluations by rating"))
    bands = []
    for band in np.unique(band_R).tolist():
        is_band_R = band_R == band
        figures_TR = nll_TR[:, is_band_R], hit_TR[:, is_band_R]
        bands.append(_describe_band(band, *figures_TR, game_R[is_band_R]))
    return {"ratings": list(BAND_CENTERS), "rows": bands}


def _describe_band(
    band: int, nll_TR: NDArray[np.float64], hit_TR: NDArray[np.float64], game_R: NDArray[np.uint64]
) -> dict[str, Any]:
    """Return the figures of one rating band, from its rows under each condition."""
    likelihood_T, top1_T = -nll_TR.mean(axis=1), hit_TR.mean(axis=1)
    centers_T = likelihood_T[: len(BAND_CENTERS)]
    other = int(np.argmax(np.where(np.arange(len(BAND_CENTERS)) == band, -np.inf, centers_T)))
    lead, low, high = clustered_mean(nll_TR[other] - nll_TR[band], game_R)
    true, unknown = CONDITIONS.index(TRUE_RATINGS), CONDITIONS.index(UNKNOWN_RATINGS)
    verdict = "leads" if lead > 0 else "trails" if lead < 0 else "ties"
    if low is not None and high is not None and low * high > 0:  # the interval excludes 0
        verdict = "wins" if low > 0 else "loses"
    return {
        "band": name_bands(BAND_EDGES)[band],
        "rating": BAND_CENTERS[band],
        "positions": nll_TR.shape[1],
        "games": len(np.unique(game_R)),
        "log_likelihood": centers_T.tolist(),
        "top1": top1_T[: len(BAND_CENTERS)].tolist(),
        "true_log_likelihood": float(likelihood_T[true]),
        "true_top1": float(top1_T[true]),
        "unknown_log_likelihood": float(likelihood_T[unknown]),
        "unknown_top1": float(top1_T[unknown]),
        "best": BAND_CENTERS[int(np.argmax(centers_T))],
        "other": BAND_CENTERS[other],
        "lead": lead,
        "lead_low": low,
        "lead_high": high,
        "verdict": verdict,
    }


def describe_matrix(rows: list[dict[str, Any]]) -> str:
    """Return a sentence on the number of bands in which the band's own rating predicts best."""
    if not rows:
        return "skipped: no position has a player with a known rating"
    best = sum(row["best"] == row["rating"] for row in rows)
    wins, losses = (sum(row["verdict"] == word for row in rows) for word in ("wins", "loses"))
    return (
        f"the band's own rating predicts best in {best} of {len(rows)} bands; against the best "
        f"other rating it wins beyond its 95 % interval in {wins} and loses in {losses}"
    )
