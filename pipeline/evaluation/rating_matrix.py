"""Measure how well a network conditioned on a rating predicts human players of each rating.

Axes: B rows of a batch, R rows of the sample, T conditions (CONDITIONS), A label (4096).
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
CENTERS = (
    BAND_EDGES[0] - 100,
    *((low + high) // 2 for low, high in itertools.pairwise(BAND_EDGES)),
    BAND_EDGES[-1] + 100,
)
"""Rating that represents each band; the network is given it for both players."""
RATINGS = ("elo", "opponent_elo")
TRUE, UNKNOWN = -1, BATCH_SENTINELS["elo"]
"""Further conditions besides CENTERS: both players' true ratings, and no ratings."""
CONDITIONS = (*CENTERS, TRUE, UNKNOWN)
BATCH = 1024
NO_RATINGS = "skipped: no position has a mover with a known rating"


def choose_by_band(table: "pl.DataFrame", count: int) -> list[int]:
    """Return the numbers of up to `count` rows per band of known ratings, lowest band first.

    Rows are chosen by a hash of game and ply. So the sample does not depend on the order of the
    rows, and a smaller sample is part of a larger one.
    """
    game_R, ply_R = (table[name].to_numpy().astype(np.uint64) for name in ("game", "ply"))
    chance_R = splitmix64(game_R ^ splitmix64(ply_R))
    band_R = assign_rating_bands(table["elo"].to_numpy(), BAND_EDGES)
    order_R = np.lexsort((chance_R, band_R))
    bands = (order_R[band_R[order_R] == band][:count] for band in range(len(CENTERS)))
    chosen: list[int] = np.concatenate(list(bands)).tolist()
    return chosen


def measure_matrix(
    network: "NetworkEvaluator", rows: Batch, game_R: NDArray[np.uint64], progress: Progress
) -> dict[str, Any]:
    """Return top-1 and mean log-likelihood of human moves, by rating band and given rating.

    `ratings` are the columns, and each of `rows` is a band with `positions games rating`. It has
    the lists `log_likelihood top1` by column, and the same figures under both players' true ratings
    (`true_*`) and without ratings (`unknown_*`). `best` is the rating with the highest likelihood,
    and `other` the best one apart from the band's own.

    `lead` is the likelihood of the band's own rating minus that of `other`, in nats per move, with
    the interval of the paired difference by games. Choosing `other` on the same rows biases the
    lead against the band's own rating.
    """
    from model.metrics import output_metrics

    count, band_R = len(game_R), assign_rating_bands(rows["elo"], BAND_EDGES)
    nll_TR, hit_TR = np.zeros((2, len(CONDITIONS), count))
    for begin in range(0, count, BATCH):
        part = slice(begin, begin + BATCH)
        batch = {name: values[part] for name, values in rows.items()}
        for number, condition in enumerate(CONDITIONS):
            names = RATINGS if condition != TRUE else ()
            given = {name: np.full_like(batch[name], condition) for name in names}
            figures = output_metrics(*network(batch["planes"], batch | given), batch)
            nll_TR[number, part], hit_TR[number, part] = figures["nll"], figures["rank"] == 1
        done = min(begin + BATCH, count) * len(CONDITIONS)
        progress(Tick(done, count * len(CONDITIONS), "evaluations by rating"))
    found = []
    for band in np.unique(band_R).tolist():
        mine_R = band_R == band
        found.append(_row(band, nll_TR[:, mine_R], hit_TR[:, mine_R], game_R[mine_R]))
    return {"ratings": list(CENTERS), "rows": found}


def _row(
    band: int, nll_TR: NDArray[np.float64], hit_TR: NDArray[np.float64], game_R: NDArray[np.uint64]
) -> dict[str, Any]:
    """Return the matrix row of one rating band."""
    likelihood_T, top1_T = -nll_TR.mean(axis=1), hit_TR.mean(axis=1)
    centers_T = likelihood_T[: len(CENTERS)]
    other = int(np.argmax(np.where(np.arange(len(CENTERS)) == band, -np.inf, centers_T)))
    lead, low, high = clustered_mean(nll_TR[other] - nll_TR[band], game_R)
    true, unknown = CONDITIONS.index(TRUE), CONDITIONS.index(UNKNOWN)
    verdict = "leads" if lead > 0 else "trails" if lead < 0 else "ties"
    if low is not None and high is not None and low * high > 0:  # significant
        verdict = "wins" if low > 0 else "loses"
    return {
        "band": name_bands(BAND_EDGES)[band],
        "rating": CENTERS[band],
        "positions": nll_TR.shape[1],
        "games": len(np.unique(game_R)),
        "log_likelihood": centers_T.tolist(),
        "top1": top1_T[: len(CENTERS)].tolist(),
        "true_log_likelihood": float(likelihood_T[true]),
        "true_top1": float(top1_T[true]),
        "unknown_log_likelihood": float(likelihood_T[unknown]),
        "unknown_top1": float(top1_T[unknown]),
        "best": CENTERS[int(np.argmax(centers_T))],
        "other": CENTERS[other],
        "lead": lead,
        "lead_low": low,
        "lead_high": high,
        "verdict": verdict,
    }


def describe_matrix(rows: list[dict[str, Any]]) -> str:
    """Return a sentence on the number of bands in which the band's own rating predicts best."""
    if not rows:
        return NO_RATINGS
    best = sum(row["best"] == row["rating"] for row in rows)
    wins, losses = (sum(row["verdict"] == word for row in rows) for word in ("wins", "loses"))
    return (
        f"the band's own rating predicts best in {best} of {len(rows)} bands; against the best "
        f"other rating it wins beyond its 95 % interval in {wins} and loses in {losses}"
    )
