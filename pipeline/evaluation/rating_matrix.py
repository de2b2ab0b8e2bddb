"""Measure how well a network conditioned on a rating predicts human players of each rating.

Axes: B rows of a batch, R rows of the sample, T conditions (CONDITIONS), A label (4096).
"""

import itertools
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from engine.progress import Progress, Tick
from pipeline.dataset.files.columns import BATCH_SENTINELS
from pipeline.dataset.files.shards import Batch
from pipeline.dataset.hashing import splitmix64
from pipeline.dataset.strata import band_names, rating_band
from pipeline.evaluation.figures import clustered_mean

if TYPE_CHECKING:
    from model.inference.evaluator import NetworkEvaluator

EDGES = tuple(range(800, 2601, 200))
"""Boundaries of the bands of the mover's rating: 11 bands, open at both ends."""
NAMES = tuple(band_names(EDGES)[:-1])
CENTERS = (
    EDGES[0] - 100,
    *((low + high) // 2 for low, high in itertools.pairwise(EDGES)),
    EDGES[-1] + 100,
)
"""Rating that represents each band; the network is given it for both players."""
RATINGS = ("elo", "opponent_elo")
TRUE, UNKNOWN = "true", "unknown"
"""Further conditions besides CENTERS: both players' true ratings, and no ratings."""
CONDITIONS: tuple[int | str, ...] = (*CENTERS, TRUE, UNKNOWN)
BATCH = 1024
NO_RATINGS = "skipped: no position has a mover with a known rating"


class BandSample:
    """A sample of up to `rows` positions per rating band; skips rows with an unknown rating.

    Rows are chosen by a hash of game and ply. So the sample does not depend on the order of
    batches, and a smaller sample is part of a larger one.
    """

    def __init__(self, rows: int) -> None:
        self.rows = rows
        self.kept: dict[int, Batch] = {}

    def add(self, batch: Batch, game_B: NDArray[np.uint64]) -> None:
        """Offer the rows of a batch to the sample; `game_B` identifies their games."""
        chance_B = splitmix64(game_B ^ splitmix64(batch["ply"].astype(np.uint64)))
        band_B = rating_band(batch["elo"], EDGES)
        columns = batch | {"game_id": game_B, "chance": chance_B}
        for band in np.unique(band_B[band_B < len(CENTERS)]).tolist():
            old, mine_B = self.kept.get(band), band_B == band
            rows = {name: values[mine_B] for name, values in columns.items()}
            if old is not None:
                rows = {name: np.concatenate([old[name], rows[name]]) for name in rows}
            first = np.argsort(rows["chance"], kind="stable")[: self.rows]
            self.kept[band] = {name: values[first] for name, values in rows.items()}

    def take(self) -> tuple[Batch, NDArray[np.int64]]:
        """Return the sample as one batch, with the column `game_id`, and each row's band [R]."""
        bands = sorted(self.kept)
        parts = [self.kept[band] for band in bands]
        if not parts:
            return {}, np.zeros(0, dtype=np.int64)
        band_R = np.repeat(np.array(bands, dtype=np.int64), [len(part["chance"]) for part in parts])
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}, band_R


def evaluate_conditions(
    network: "NetworkEvaluator", rows: Batch
) -> Iterator[tuple[int, slice, Batch, NDArray[np.float32], NDArray[np.float32]]]:
    """Yield the network's outputs under each condition: its number, rows, batch, logits, WDL."""
    for begin in range(0, len(rows["planes"]), BATCH):
        part = slice(begin, begin + BATCH)
        batch = {name: values[part] for name, values in rows.items()}
        for number, condition in enumerate(CONDITIONS):
            yield number, part, batch, *network(batch["planes"], batch | _ratings(batch, condition))


def _ratings(batch: Mapping[str, NDArray[Any]], condition: int | str) -> Batch:
    """Return the rating columns to replace under a condition."""
    if condition == TRUE:
        return {}
    value = BATCH_SENTINELS["elo"] if condition == UNKNOWN else condition
    return {name: np.full_like(batch[name], value) for name in RATINGS}


def measure_matrix(
    network: "NetworkEvaluator", sample: BandSample, progress: Progress
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
    from model.metrics import rows as measured

    batch, band_R = sample.take()
    if not len(band_R):
        return {"ratings": list(CENTERS), "rows": []}
    nll_TR, hit_TR = np.zeros((2, len(CONDITIONS), len(band_R)))
    for number, part, these, logits_BA, wdl_B3 in evaluate_conditions(network, batch):
        figures = measured(logits_BA, wdl_B3, these)
        nll_TR[number, part], hit_TR[number, part] = figures["nll"], figures["rank"] == 1
        done = part.start * len(CONDITIONS) + (number + 1) * len(these["planes"])
        progress(Tick(done, len(band_R) * len(CONDITIONS), "evaluations by rating"))
    found = []
    for band in np.unique(band_R).tolist():
        mine_R = band_R == band
        games = batch["game_id"][mine_R]
        found.append(_row(band, nll_TR[:, mine_R], hit_TR[:, mine_R], games))
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
    return {
        "band": NAMES[band],
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
        "verdict": describe_lead(lead, low, high),
    }


def describe_lead(lead: float, low: float | None, high: float | None) -> str:
    """Return wins or loses if the interval excludes 0, otherwise leads, trails or ties."""
    if low is not None and high is not None and low * high > 0:
        return "wins" if low > 0 else "loses"
    return "leads" if lead > 0 else "trails" if lead < 0 else "ties"


def describe_matrix(matrix: dict[str, Any]) -> str:
    """Return a sentence on the number of bands in which the band's own rating predicts best."""
    rows = matrix["rows"]
    if not rows:
        return NO_RATINGS
    best = sum(row["best"] == row["rating"] for row in rows)
    wins, losses = (sum(row["verdict"] == word for row in rows) for word in ("wins", "loses"))
    return (
        f"the band's own rating predicts best in {best} of {len(rows)} bands; against the best "
        f"other rating it wins beyond its 95 % interval in {wins} and loses in {losses}"
    )
