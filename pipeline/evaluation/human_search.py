"""Measure how well a policy predicts human moves with and without correction by a search.

Axes: B rows of a batch, A labels, W words of a position.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from engine.search import Search
from engine.search.human import HumanRoot, correct_logits, human_config, search_roots
from engine.search.results import Root
from pipeline.dataset.files.shards import Batch
from pipeline.dataset.files.stored_planes import rows_to_positions
from pipeline.dataset.strata import assign_rating_bands, name_bands
from pipeline.errors import ConfigError

if TYPE_CHECKING:
    import polars as pl

    from model.inference.evaluator import NetworkEvaluator
    from model.inference.onnx_evaluator import OnnxEvaluator

COMPARED_RATING_EDGES = (1000, 1400, 1800, 2200)
"""Boundaries between the rating bands of the comparison."""
STRONG_RATING = 1800
"""Minimum rating of the group of strong players, which is listed after the bands."""
SEARCH_BATCH_ROWS = 256
"""Number of positions searched together."""

Rows = list[dict[str, Any]]


def search_rows(
    evaluator: "NetworkEvaluator | OnnxEvaluator",
    batch: Batch,
    logits_BA: NDArray[np.float32],
    wdl_B3: NDArray[np.float32],
    simulations: int,
) -> Iterator[tuple[slice, list[HumanRoot], list[Root]]]:
    """Search the positions of a batch in groups; yield each group's rows, roots and results.

    `logits_BA` and `wdl_B3` are the network's outputs for the batch.
    """
    positions_BW = rows_to_positions(batch)
    config = human_config(simulations)
    for first in range(0, len(positions_BW), SEARCH_BATCH_ROWS):
        rows = slice(first, first + SEARCH_BATCH_ROWS)
        outputs = zip(positions_BW[rows], logits_BA[rows], wdl_B3[rows], strict=True)
        roots = [HumanRoot(position, (), *output) for position, *output in outputs]
        search = Search(evaluator, config, games=len(roots))
        yield rows, roots, search_roots(search, roots, simulations)


def measure_search(
    evaluator: "NetworkEvaluator | OnnxEvaluator",
    simulations: int,
    batch: Batch,
    logits_BA: NDArray[np.float32],
    wdl_B3: NDArray[np.float32],
) -> dict[str, NDArray[Any]]:
    """Search a batch; return the rank and nll of each move played under the corrected policy.

    The arrays are called `searched_rank` and `searched_nll`. Raises ConfigError if the checkpoint
    has no correction.
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

    `table` has the columns of `measure_search`. There is a row for each band of ratings that
    has positions, for all ratings from STRONG_RATING on, and for all positions.
    """
    elo = table["elo"].to_numpy()
    band = assign_rating_bands(elo, COMPARED_RATING_EDGES)
    names = enumerate(name_bands(COMPARED_RATING_EDGES))
    groups = [(name, band == number) for number, name in names]
    groups += [
        (f"{STRONG_RATING} and on", elo >= STRONG_RATING),
        ("all", np.ones(len(elo), dtype=np.bool_)),
    ]
    return [_compare(name, table.filter(rows)) for name, rows in groups if rows.any()]


def _compare(name: str, policy: "pl.DataFrame") -> dict[str, Any]:
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
