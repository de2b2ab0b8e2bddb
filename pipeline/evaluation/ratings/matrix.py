"""Measure how well a network, given a rating, predicts people of each rating.

Axes: R rows of the sample, T conditions (CONDITIONS).
"""

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from engine.progress import Progress, Tick
from pipeline.evaluation.intervals import clustered_mean
from pipeline.evaluation.ratings.sample import (
    CENTERS,
    CONDITIONS,
    NAMES,
    TRUE,
    UNKNOWN,
    BandSample,
    evaluate_conditions,
)

if TYPE_CHECKING:
    from model.inference.evaluator import NetworkEvaluator

NO_RATINGS = "skipped: no position has a mover of known rating"


def measure_matrix(
    network: "NetworkEvaluator", sample: BandSample, progress: Progress
) -> dict[str, Any]:
    """Return top-1 and mean log-likelihood of people's moves, by band and given rating.

    `ratings` names the columns and each of `rows` is a band: `positions games rating`, the lists
    `log_likelihood top1` by column, and the same figures under both players' true ratings
    (`true_*`) and none (`unknown_*`). `best` is the rating with the highest likelihood, `other` the
    best except the band's own. `lead` is the own rating's likelihood less that of `other`, in nats
    per move, with the interval of the paired difference by games. `other` is chosen on these rows,
    which flatters it.
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
    bands = np.unique(band_R).tolist()
    found = [
        _row(
            band,
            nll_TR[:, band_R == band],
            hit_TR[:, band_R == band],
            batch["game_id"][band_R == band],
        )
        for band in bands
    ]
    return {"ratings": list(CENTERS), "rows": found}


def _row(
    band: int, nll_TR: NDArray[np.float64], hit_TR: NDArray[np.float64], game_R: NDArray[np.uint64]
) -> dict[str, Any]:
    """Return the figures of one band."""
    likelihood_T, top1_T = -nll_TR.mean(axis=1), hit_TR.mean(axis=1)
    centers_T = likelihood_T[: len(CENTERS)]
    other = int(np.argmax(np.where(np.arange(len(CENTERS)) == band, -np.inf, centers_T)))
    lead, low, high = clustered_mean(nll_TR[other] - nll_TR[band], game_R)
    more = dict[str, float]()
    for name in (TRUE, UNKNOWN):
        at = CONDITIONS.index(name)
        more |= {
            f"{name}_log_likelihood": float(likelihood_T[at]),
            f"{name}_top1": float(top1_T[at]),
        }
    return {
        "band": NAMES[band],
        "rating": CENTERS[band],
        "positions": nll_TR.shape[1],
        "games": len(np.unique(game_R)),
        "log_likelihood": centers_T.tolist(),
        "top1": top1_T[: len(CENTERS)].tolist(),
        **more,
        "best": CENTERS[int(np.argmax(centers_T))],
        "other": CENTERS[other],
        "lead": lead,
        "lead_low": low,
        "lead_high": high,
        "verdict": describe_lead(lead, low, high),
    }


def describe_lead(lead: float, low: float | None, high: float | None) -> str:
    """Return the verdict: wins or loses outside the interval, else leads, trails or ties."""
    if low is not None and high is not None and low * high > 0:
        return "wins" if low > 0 else "loses"
    return "leads" if lead > 0 else "trails" if lead < 0 else "ties"


def describe_matrix(matrix: dict[str, Any]) -> str:
    """Return in how many bands the own rating predicts best."""
    rows = matrix["rows"]
    if not rows:
        return NO_RATINGS
    best = sum(row["best"] == row["rating"] for row in rows)
    wins, losses = (sum(row["verdict"] == word for row in rows) for word in ("wins", "loses"))
    return (
        f"the band's own rating predicts best in {best} of {len(rows)} bands; against the best "
        f"other rating it wins beyond "
        f"its 95 % interval in {wins} and loses in {losses}"
    )
