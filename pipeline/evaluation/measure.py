"""The measured rows of a report: the answers of a network and its baselines in every counted position.

Axes: B rows of a batch, R rows of a report, A label (4096).
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from engine.encoding.planes import LABELS, legal_mask
from engine.progress import Progress, Tick
from pipeline.dataset.files.shards import Batch
from pipeline.dataset.hashing import splitmix64
from pipeline.dataset.position_keys import position_keys
from pipeline.dataset.training_set import Shard, row_groups
from pipeline.errors import ConfigError
from pipeline.evaluation.page.boards import BoardSelection
from pipeline.evaluation.ratings.sample import BandSample

if TYPE_CHECKING:
    import polars as pl

    from model.inference.evaluator import NetworkEvaluator

BATCH = 1024
SLICED = ("castling", "label", "result", "ply", "plies", "elo", "opponent_elo", "clock", "game", "base", "increment")
COLUMNS = ("planes", *SLICED, "promotion", "last_move", "ep_file")


COMMON_PLY, COMMON_CLOCK = 10, 30
"""First ply, and seconds left on a known clock, in most published figures of human moves, which are reported too."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Rule:
    """The positions that count."""

    min_ply: int = 0
    """Half-moves played before the first position that counts."""
    limit: int = 0
    """Most positions, drawn at random from all games before min_ply is applied; 0 for all."""

    def __post_init__(self) -> None:
        """Check ranges."""
        if min(self.min_ply, self.limit) < 0:
            raise ConfigError("min_ply and limit must be 0 or more")

    def describe(self, where: str, *, common: bool = False) -> str:
        """Return the rule in words; `common` is the usual rule of the literature, applied to the positions of this one."""
        ply = max(self.min_ply, COMMON_PLY) if common else self.min_ply
        plies = f"from ply {ply} on" if ply else "every ply"
        clock = f", mover's clock at least {COMMON_CLOCK} s where known" if common else ""
        sample = f", a random sample of at most {self.limit:,} positions of all games" if self.limit else ""
        return f"{where}: {plies} of every game{clock}{sample}; illegal moves are masked before ranking"


def without_players(batch: Batch) -> Batch:
    """Return a batch in which every player's rating and clock is unknown."""
    from model.network.conditioning import STEPS

    return batch | {name: np.full_like(batch[name], steps.unknown) for name, steps in STEPS.items() if name in batch}


Baseline = Callable[[Batch], NDArray[np.float32]]
"""Returns logits [B, A]."""


def most_frequent(train: Sequence[Shard]) -> Baseline | None:
    """Return the baseline that ranks labels by how often they were played in train; None for no rows."""
    counts_A = np.zeros(LABELS, dtype=np.int64)
    for rows in row_groups(train, ("label",)):
        counts_A += np.bincount(rows["label"], minlength=LABELS)
    logits_A = np.log(counts_A + 1.0).astype(np.float32)
    return (lambda batch: np.tile(logits_A, (len(batch["planes"]), 1))) if counts_A.any() else None


def measured_rows(
    batches: Iterator[Batch],
    network: "NetworkEvaluator",
    rule: Rule,
    rows: int,
    players: bool,
    frequent: Baseline | None,
    sample: BandSample,
    progress: Progress,
) -> tuple["pl.DataFrame", BoardSelection]:
    """Return a table of the counted rows with the columns that slices go by, and the boards worth showing.

    `sample` collects rows by rating band. Without `players`, ratings and clocks are hidden from the network. Raises
    ConfigError if no row counts, or the network answers with NaN.
    """
    import polars as pl

    from engine.evaluation.handwritten import evaluate
    from model.metrics import rows as measured
    from pipeline.evaluation.moves import move_columns

    tables, boards, done, began = [], BoardSelection(), 0, time.perf_counter()
    for raw in batches:
        keep = raw["ply"] >= rule.min_ply
        done += len(keep)
        if not keep.any():
            continue
        batch = raw if keep.all() else {name: values[keep] for name, values in raw.items()}
        logits_BA, wdl_B3 = network(batch["planes"], batch if players else without_players(batch))
        figures = measured(logits_BA, wdl_B3, batch)
        if not all(np.isfinite(figures[name]).all() for name in ("nll", "legal_mass", "expected")):
            raise ConfigError("the network answers with NaN or infinity: its training diverged, or its file is damaged")
        columns: dict[str, NDArray[Any]] = {name: batch[name] for name in SLICED}
        columns["key"] = position_keys(batch["planes"], batch["castling"])
        columns["game"] = _game_ids(batch)
        columns |= figures | _first_choice(logits_BA, batch) | move_columns(batch)
        answers = {"classical": evaluate(batch["planes"])}
        if frequent is not None:
            answers["frequent"] = frequent(batch), np.full_like(wdl_B3, 1 / 3)
        for name, answer in answers.items():
            found = measured(*answer, batch)
            columns |= {f"{name}_{figure}": found[figure] for figure in ("rank", "nll", "brier")}
        boards.add(batch, columns)
        sample.add(batch, columns["game"])
        tables.append(pl.DataFrame(columns))
        top1 = float((figures["rank"] == 1).mean())
        progress(Tick(done, rows, "positions", {"top1": top1, "positions/s": done / (time.perf_counter() - began)}))
    if not tables:
        hint = ", or raise limit" if rule.limit else ""
        raise ConfigError(f"no position counts under this rule: lower min_ply{hint}")
    table = pl.concat(tables).with_columns(pl.col("score", "brier", "wdl_brier", "classical_brier").fill_nan(None))
    return table, boards


def _first_choice(logits_BA: NDArray[np.float32], batch: Batch) -> dict[str, NDArray[Any]]:
    """Return the label of the network's first choice among legal moves (the lowest of equals), and its probability."""
    masked_BA = np.where(legal_mask(batch["planes"]), logits_BA, -np.inf)
    choice_B = masked_BA.argmax(axis=1)
    highest_B1 = masked_BA.max(axis=1, keepdims=True)
    probability_B = 1 / np.exp(masked_BA - highest_B1, dtype=np.float64).sum(axis=1)
    return {"choice": choice_B, "choice_probability": probability_B}


def _game_ids(batch: Batch) -> NDArray[np.uint64]:
    """Return a hash of each row's game that differs between datasets, which all number their games from 0."""
    elo = np.sort(np.stack([batch["elo"], batch["opponent_elo"]]), axis=0).astype(np.uint64)
    same = elo[0] << np.uint64(48) | elo[1] << np.uint64(32) | batch["plies"].astype(np.uint64)
    return splitmix64(splitmix64(same) ^ batch["game"].astype(np.uint64))
