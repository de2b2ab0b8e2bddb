"""Measure human search: a rating's policy, alone and corrected by a search, on the same rows.

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
"""Columns that a search of rows reads."""
EDGES = (1000, 1400, 1800, 2200)
STRONG = 1800
"""Minimum rating of an additional group of rows."""
SIDE_BY_SIDE = 256
"""Number of trees that are searched together."""

Rows = list[dict[str, Any]]


def search_rows(
    evaluator: "NetworkEvaluator | OnnxEvaluator",
    batch: Batch,
    logits_BA: NDArray[np.float32],
    wdl_B3: NDArray[np.float32],
    simulations: int,
) -> Iterator[tuple[slice, list[HumanRoot], list[Root]]]:
    """Search a batch's positions; yield some rows, their roots, and the results."""
    positions_BW = row_positions(batch)
    config = human_config(simulations)
    for first in range(0, len(positions_BW), SIDE_BY_SIDE):
        rows = slice(first, first + SIDE_BY_SIDE)
        answers = zip(positions_BW[rows], logits_BA[rows], wdl_B3[rows], strict=True)
        roots = [HumanRoot(position, (), *answer) for position, *answer in answers]
        search = Search(evaluator, config, games=len(roots))
        yield rows, roots, search_roots(search, roots, simulations)


class SearchedRows:
    """The measured rows of a report with their searched policy, collected batch by batch."""

    def __init__(self, evaluator: "NetworkEvaluator | OnnxEvaluator", simulations: int) -> None:
        """Raise ConfigError for a checkpoint whose card holds no correction."""
        if "likelihood" not in evaluator.corrections:
            raise ConfigError(
                "the checkpoint's card holds no correction by search: run `fianchetto calibrate` "
                "first"
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
        """Search a batch; `ratings_B` is 0 where hidden, `columns` are the measured ones."""
        from model.metrics import rows as measured

        weight_B, sharpness_B = self.correction.at(ratings_B)
        corrected_BA = np.empty(answer[0].shape, dtype=np.float32)
        for rows, roots, found in search_rows(self.evaluator, batch, *answer, self.simulations):
            corrected_BA[rows] = correct_logits(roots, found, weight_B[rows], sharpness_B[rows])
        searched = measured(corrected_BA, answer[1], batch)
        part = {name: columns[name] for name in ("rank", "nll", "game", "key", "elo")}
        self.parts.append(part | {f"searched_{name}": searched[name] for name in ("rank", "nll")})

    def compare_by_rating(self) -> Rows:
        """Return accuracy without and with search, and the paired differences, by rating.

        A row is a band of ratings, all from STRONG on, or all positions. Intervals are by game,
        None for too few.
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
    """Return the figures of one group of rows."""
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
