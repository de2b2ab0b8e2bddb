"""Sample equally many positions per rating band, and evaluate them under given ratings.

Axes: B rows of a batch, R rows of a sample, A label (4096).
"""

import itertools
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pipeline.dataset.files.columns import BATCH_SENTINELS
from pipeline.dataset.files.shards import Batch
from pipeline.dataset.hashing import splitmix64
from pipeline.dataset.strata import band_names, rating_band

if TYPE_CHECKING:
    from model.inference.evaluator import NetworkEvaluator

EDGES = tuple(range(800, 2601, 200))
"""Edges of the bands of the mover's rating: 11 bands, the outer ones open."""
NAMES = tuple(band_names(EDGES)[:-1])
CENTERS = (
    EDGES[0] - 100,
    *((low + high) // 2 for low, high in itertools.pairwise(EDGES)),
    EDGES[-1] + 100,
)
"""The rating that stands for each band; both players are given it."""
RATINGS = ("elo", "opponent_elo")
TRUE, UNKNOWN = "true", "unknown"
"""Conditions beside CENTERS: both players' true ratings, and none."""
CONDITIONS: tuple[int | str, ...] = (*CENTERS, TRUE, UNKNOWN)
BATCH = 1024


class BandSample:
    """At most `rows` positions per rating band; rows of unknown rating are left out.

    The choice is a hash of game and ply: the order of batches does not matter, and a smaller sample
    is part of a larger one.
    """

    def __init__(self, rows: int) -> None:
        self.rows = rows
        self.kept: dict[int, Batch] = {}

    def add(self, batch: Batch, game_B: NDArray[np.uint64]) -> None:
        """Consider the rows of a batch; `game_B` identifies their games."""
        if not self.rows:
            return
        chance_B = splitmix64(game_B ^ splitmix64(batch["ply"].astype(np.uint64)))
        band_B = rating_band(batch["elo"], EDGES)
        columns = batch | {"game_id": game_B, "chance": chance_B}
        for band in np.unique(band_B[band_B < len(CENTERS)]).tolist():
            old, mine_B = self.kept.get(band), band_B == band
            if old is not None and len(old["chance"]) == self.rows:
                mine_B &= chance_B < old["chance"][-1]
                if not mine_B.any():
                    continue
            new = {name: values[mine_B] for name, values in columns.items()}
            both = (
                new
                if old is None
                else {name: np.concatenate([old[name], new[name]]) for name in new}
            )
            first = np.argsort(both["chance"], kind="stable")[: self.rows]
            self.kept[band] = {name: values[first] for name, values in both.items()}

    def take(self) -> tuple[Batch, NDArray[np.int64]]:
        """Return all positions as one batch with the column `game_id`, and the band of each [R]."""
        bands = sorted(self.kept)
        parts = [self.kept[band] for band in bands]
        if not parts:
            return {}, np.zeros(0, dtype=np.int64)
        band_R = np.repeat(np.array(bands, dtype=np.int64), [len(part["chance"]) for part in parts])
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}, band_R


def evaluate_conditions(
    network: "NetworkEvaluator", rows: Batch
) -> Iterator[tuple[int, slice, Batch, NDArray[np.float32], NDArray[np.float32]]]:
    """Yield the network's answers under each condition: number, rows, batch, logits, values."""
    for begin in range(0, len(rows["planes"]), BATCH):
        part = slice(begin, begin + BATCH)
        batch = {name: values[part] for name, values in rows.items()}
        for number, condition in enumerate(CONDITIONS):
            yield number, part, batch, *network(batch["planes"], batch | _ratings(batch, condition))


def _ratings(batch: Mapping[str, NDArray[Any]], condition: int | str) -> Batch:
    """Return both rating columns under a condition."""
    if condition == TRUE:
        return {}
    value = BATCH_SENTINELS["elo"] if condition == UNKNOWN else condition
    return {name: np.full_like(batch[name], value) for name in RATINGS}
