"""How well a network that is told a rating predicts people of each rating: a matrix whose diagonal should win its rows.

Axes: R rows of the sample, T what the network is told (CONDITIONS).
"""

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from engine.progress import Progress, Tick
from pipeline.evaluation.figures import clustered_mean
from pipeline.evaluation.ratings.sample import CONDITIONS, NAMES, TOLD, TRUE, UNKNOWN, BandSample, answers

if TYPE_CHECKING:
    from model.inference.evaluator import NetworkEvaluator

NOBODY = "left out: no position has a mover of known rating"


def told_matrix(network: "NetworkEvaluator", sample: BandSample, rows: int, progress: Progress) -> dict[str, Any]:
    """Return top-1 and mean log-likelihood (nats) of people's moves by band of the mover and told rating.

    `told` names the columns and each of `rows` is a band: `positions games told`, the lists `log_likelihood top1` by column,
    and the same figures when both players' own ratings are told (`true_*`) and none (`unknown_*`). `best` is the told rating
    with the highest likelihood; `other` is the best but the band's own, and `lead` the band's own less that one, nats a
    move, with the interval of the paired difference by games. The other is chosen on these rows: its figure flatters it.
    """
    from model.metrics import rows as measured

    batch, band_R = sample.take(rows)
    if not len(band_R):
        return {"told": list(TOLD), "rows": []}
    nll_TR, hit_TR = np.zeros((2, len(CONDITIONS), len(band_R)))
    for number, part, these, logits_BA, wdl_B3 in answers(network, batch):
        figures = measured(logits_BA, wdl_B3, these)
        nll_TR[number, part], hit_TR[number, part] = figures["nll"], figures["rank"] == 1
        done = part.start * len(CONDITIONS) + (number + 1) * len(these["planes"])
        progress(Tick(done, len(band_R) * len(CONDITIONS), "told ratings"))
    found = []
    for band in np.unique(band_R).tolist():
        mine = band_R == band
        found.append(_row(band, nll_TR[:, mine], hit_TR[:, mine], batch["game_id"][mine]))
    return {"told": list(TOLD), "rows": found}


def _row(
    band: int, nll_TR: NDArray[np.float64], hit_TR: NDArray[np.float64], game_R: NDArray[np.uint64]
) -> dict[str, Any]:
    """Return the figures of one band."""
    likelihood_T, top1_T = -nll_TR.mean(axis=1), hit_TR.mean(axis=1)
    told_T = likelihood_T[: len(TOLD)]
    other = int(np.argmax(np.where(np.arange(len(TOLD)) == band, -np.inf, told_T)))
    lead, low, high = clustered_mean(nll_TR[other] - nll_TR[band], game_R)
    more = dict[str, float]()
    for name in (TRUE, UNKNOWN):
        at = CONDITIONS.index(name)
        more |= {f"{name}_log_likelihood": float(likelihood_T[at]), f"{name}_top1": float(top1_T[at])}
    return {
        "band": NAMES[band],
        "told": TOLD[band],
        "positions": nll_TR.shape[1],
        "games": len(np.unique(game_R)),
        "log_likelihood": told_T.tolist(),
        "top1": top1_T[: len(TOLD)].tolist(),
        **more,
        "best": TOLD[int(np.argmax(told_T))],
        "other": TOLD[other],
        "lead": lead,
        "lead_low": low,
        "lead_high": high,
        "verdict": verdict(lead, low, high),
    }


def verdict(lead: float, low: float | None, high: float | None) -> str:
    """Return how the band's own rating fares: wins or loses where the interval leaves out 0; leads, trails, ties."""
    if low is not None and high is not None and low * high > 0:
        return "wins" if low > 0 else "loses"
    return "leads" if lead > 0 else "trails" if lead < 0 else "ties"


def matrix_table(matrix: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the rows of a matrix as a table of plain columns: how each band's own rating fares."""
    table = []
    for row in matrix["rows"]:
        own = matrix["told"].index(row["told"])
        table.append(
            {
                "band": row["band"],
                "positions": row["positions"],
                "games": row["games"],
                "own": row["told"],
                "log_likelihood": row["log_likelihood"][own],
                "top1": row["top1"][own],
                "best_other": row["other"],
                **{name: row[name] for name in ("lead", "lead_low", "lead_high")},
                "own_rating": row["verdict"],
                "told_true_ratings": row["true_log_likelihood"],
                "told_nothing": row["unknown_log_likelihood"],
            }
        )
    return table


def matrix_sentence(matrix: dict[str, Any]) -> str:
    """Return how many bands' own rating predicts them best."""
    rows = matrix["rows"]
    if not rows:
        return NOBODY
    best = sum(row["best"] == row["told"] for row in rows)
    sure = [sum(row["verdict"] == word for row in rows) for word in ("wins", "loses")]
    return (
        f"the own rating is the best one told in {best} of {len(rows)} bands; against the best other it wins in {sure[0]} "
        f"and loses in {sure[1]} by more than chance (95 %)"
    )
