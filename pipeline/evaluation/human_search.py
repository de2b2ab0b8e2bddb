"""Measure human search: compare the policy at a rating, with and without correction by a search.

Axes: B rows of a batch, A labels.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from engine.search import Search
from engine.search.human import HumanRoot, correct_logits, human_config, search_roots
from engine.search.results import Root
from pipeline.dataset.files.shards import Batch
from pipeline.dataset.files.stored_planes import row_positions
from pipeline.dataset.strata import assign_rating_bands, name_bands
from pipeline.errors import ConfigError

if TYPE_CHECKING:
    import polars as pl

    from model.inference.evaluator import NetworkEvaluator
    from model.inference.onnx_evaluator import OnnxEvaluator

EDGES = (1000, 1400, 1800, 2200)
STRONG = 1800
"""Minimum rating of an additional group of rows."""
SEARCH_BATCH = 256
"""Number of positions searched together."""

Rows = list[dict[str, Any]]


def search_rows(
    evaluator: "NetworkEvaluator | OnnxEvaluator",
    batch: Batch,
    logits_BA: NDArray[np.float32],
    wdl_B3: NDArray[np.float32],
    simulations: int,
) -> Iterator[tuple[slice, list[HumanRoot], list[Root]]]:
    """Search the positions of a batch; yield slices of its rows with their roots and results."""
    positions_BW = row_positions(batch)
    config = human_config(simulations)
    for first in range(0, len(positions_BW), SEARCH_BATCH):
        rows = slice(first, first + SEARCH_BATCH)
        answers = zip(positions_BW[rows], logits_BA[rows], wdl_B3[rows], strict=True)
        roots = [HumanRoot(position, (), *answer) for position, *answer in answers]
        search = Search(evaluator, config, games=len(roots))
        yield rows, roots, search_roots(search, roots, simulations)


def search_columns(
    evaluator: "NetworkEvaluator | OnnxEvaluator",
    simulations: int,
    batch: Batch,
    logits_BA: NDArray[np.float32],
    wdl_B3: NDArray[np.float32],
) -> dict[str, NDArray[Any]]:
    """Return `searched_rank` and `searched_nll` of a batch: those of the corrected policy.

    Raises ConfigError if the checkpoint has no correction.
    """
    from model.metrics import output_metrics

    if "likelihood" not in evaluator.corrections:
        raise ConfigError(
            "the checkpoint has no correction for human search: run `fianchetto calibrate` first"
        )
    weight_B, sharpness_B = evaluator.corrections["likelihood"].interpolate(batch["elo"])
    corrected_BA = np.empty(logits_BA.shape, dtype=np.float32)
    for rows, roots, found in search_rows(evaluator, batch, logits_BA, wdl_B3, simulations):
        corrected_BA[rows] = correct_logits(roots, found, weight_B[rows], sharpness_B[rows])
    searched = output_metrics(corrected_BA, wdl_B3, batch)
    return {f"searched_{name}": searched[name] for name in ("rank", "nll")}


def compare_by_rating(table: "pl.DataFrame") -> Rows:
    """Return accuracy with and without search, and the paired differences, by rating.

    A row is a band of ratings, all ratings from STRONG on, or all positions. Intervals treat games
    as the sampling unit; they are None with too few games.
    """
    elo = table["elo"].to_numpy()
    band = assign_rating_bands(elo, EDGES)
    groups = [(name, band == number) for number, name in enumerate(name_bands(EDGES))]
    groups += [(f"{STRONG} and on", elo >= STRONG), ("all", np.ones(len(elo), dtype=np.bool_))]
    return [_compare(name, table.filter(rows)) for name, rows in groups if rows.any()]


def _compare(name: str, policy: "pl.DataFrame") -> dict[str, Any]:
    """Return the comparison for one group of rows."""
    from pipeline.evaluation.figures import paired_difference

    searched = policy.with_columns(rank="searched_rank", nll="searched_nll")
    figures = {}
    for prefix, table in (("", policy), ("searched_", searched)):
        figures[f"{prefix}top1"] = float((table["rank"] == 1).to_numpy().mean())
        figures[f"{prefix}cross_entropy"] = float(table["nll"].to_numpy().mean())
    return {
        "band": name,
        "positions": len(policy),
        "games": policy["game"].n_unique(),
        **figures,
        **paired_difference(policy, searched),
    }
