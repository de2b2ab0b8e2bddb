"""Measure human search: compare the policy at a rating, with and without correction by a search.

Axes: B rows of a batch, A labels.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from engine.search import Search
from engine.search.human import Correction, HumanRoot, correct_logits, human_config, search_roots
from engine.search.results import Root
from pipeline.dataset.files.shards import Batch
from pipeline.dataset.files.stored_planes import row_positions
from pipeline.dataset.strata import band_names, rating_band
from pipeline.errors import ConfigError

if TYPE_CHECKING:
    from model.inference.evaluator import NetworkEvaluator
    from model.inference.onnx_evaluator import OnnxEvaluator

SEARCHED_COLUMNS = ("planes", "castling", "ep_file", "halfmove", "ply")
"""Columns needed to search rows."""
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


class SearchedRows:
    """Collects a report's rows with their corrected policies, batch by batch."""

    def __init__(self, evaluator: "NetworkEvaluator | OnnxEvaluator", simulations: int) -> None:
        """Read the correction from the checkpoint's card; raise ConfigError if it has none."""
        if "likelihood" not in evaluator.corrections:
            raise ConfigError(
                "the checkpoint has no correction for human search: "
                "run `fianchetto calibrate` first"
            )
        self.evaluator, self.simulations = evaluator, simulations
        self.correction: Correction = evaluator.corrections["likelihood"]
        self.parts: list[dict[str, NDArray[Any]]] = []

    def add(
        self,
        batch: Batch,
        answer: tuple[NDArray[np.float32], NDArray[np.float32]],
        ratings_B: NDArray[np.integer],
        columns: dict[str, NDArray[Any]],
    ) -> None:
        """Search a batch; `ratings_B` is 0 if hidden, `columns` has the figures without search."""
        from model.metrics import rows as measured

        weight_B, sharpness_B = self.correction.interpolate(ratings_B)
        corrected_BA = np.empty(answer[0].shape, dtype=np.float32)
        for rows, roots, found in search_rows(self.evaluator, batch, *answer, self.simulations):
            corrected_BA[rows] = correct_logits(roots, found, weight_B[rows], sharpness_B[rows])
        searched = measured(corrected_BA, answer[1], batch)
        part = {name: columns[name] for name in ("rank", "nll", "game", "key", "elo")}
        self.parts.append(part | {f"searched_{name}": searched[name] for name in ("rank", "nll")})

    def compare_by_rating(self) -> Rows:
        """Return accuracy with and without search, and the paired differences, by rating.

        A row is a band of ratings, all ratings from STRONG on, or all positions. Intervals treat
        games as the sampling unit; they are None with too few games.
        """
        columns = {
            name: np.concatenate([part[name] for part in self.parts]) for name in self.parts[0]
        }
        elo, band = columns["elo"], rating_band(columns["elo"], EDGES)
        groups = [(name, band == number) for number, name in enumerate(band_names(EDGES))]
        groups += [(f"{STRONG} and on", elo >= STRONG), ("all", np.ones(len(elo), dtype=np.bool_))]
        return [
            _compare(name, {key: column[rows] for key, column in columns.items()})
            for name, rows in groups
            if rows.any()
        ]


def _compare(name: str, columns: dict[str, NDArray[Any]]) -> dict[str, Any]:
    """Return the comparison for one group of rows."""
    import polars as pl

    from pipeline.evaluation.figures import paired_difference

    shared = {key: columns[key] for key in ("key", "game")}
    bare = pl.DataFrame(shared | {key: columns[key] for key in ("rank", "nll")})
    searched = pl.DataFrame(shared | {key: columns[f"searched_{key}"] for key in ("rank", "nll")})
    return {
        "band": name,
        "positions": len(bare),
        "games": bare["game"].n_unique(),
        "top1": float((bare["rank"] == 1).to_numpy().mean()),
        "searched_top1": float((searched["rank"] == 1).to_numpy().mean()),
        "cross_entropy": float(bare["nll"].to_numpy().mean()),
        "searched_cross_entropy": float(searched["nll"].to_numpy().mean()),
        **paired_difference(bare, searched),
    }
