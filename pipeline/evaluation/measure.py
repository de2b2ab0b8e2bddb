"""The measured rows of a report: the answers of a network and of the hand-written player in every
counted position.

Axes: B rows of a batch, R rows of a report, A label (4096).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from engine.encoding.planes import legal_mask
from engine.encoding.views import NO_LABEL
from engine.progress import Progress, Tick
from pipeline.dataset.files.shards import Batch
from pipeline.dataset.hashing import splitmix64
from pipeline.dataset.position_keys import position_keys
from pipeline.errors import ConfigError
from pipeline.evaluation.human_search import SearchedRows
from pipeline.evaluation.page.boards import BoardSelection
from pipeline.evaluation.ratings.sample import BandSample

if TYPE_CHECKING:
    import polars as pl

    from model.inference.evaluator import NetworkEvaluator
    from model.inference.onnx_evaluator import OnnxEvaluator

BATCH = 1024
SLICED = (
    "castling",
    "label",
    "result",
    "ply",
    "plies",
    "elo",
    "opponent_elo",
    "clock",
    "game",
    "base",
    "increment",
)
COLUMNS = ("planes", *SLICED, "promotion", "last_move", "ep_file")


COMMON_PLY, COMMON_CLOCK = 10, 30
"""First ply, and seconds left on a known clock, in most published figures of human moves, which are
reported too."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Rule:
    """The positions that count."""

    min_ply: int = 0
    """Half-moves played before the first position that counts."""
    limit: int = 20_000
    """Maximum number of positions, drawn at random before min_ply is applied; 0 for all. 20,000
    give top-1 to ±0.008."""

    def __post_init__(self) -> None:
        """Check ranges."""
        if min(self.min_ply, self.limit) < 0:
            raise ConfigError("min_ply and limit must be 0 or more")

    def describe(self, where: str, *, common: bool = False) -> str:
        """Return the rule in words; `common` is the usual rule of the literature, applied to the
        positions of this one.
        """
        ply = max(self.min_ply, COMMON_PLY) if common else self.min_ply
        plies = f"from ply {ply} on" if ply else "every ply"
        clock = f", mover's clock at least {COMMON_CLOCK} s where known" if common else ""
        sample = (
            f", a random sample of at most {self.limit:,} positions of all games"
            if self.limit
            else ""
        )
        return (
            f"{where}: {plies} of every game{clock}{sample}; illegal moves are masked before "
            f"ranking"
        )


def hide_players(batch: Batch) -> Batch:
    """Return a batch in which every player's rating and clock is unknown."""
    from model.network.encoder import STEPS

    return batch | {
        name: np.full_like(batch[name], steps.unknown)
        for name, steps in STEPS.items()
        if name in batch
    }


def measure_rows(
    batches: Iterator[Batch],
    network: "NetworkEvaluator | OnnxEvaluator",
    rule: Rule,
    rows: int,
    players: bool,
    sample: BandSample,
    progress: Progress,
    factor: float | None = None,
    searched: SearchedRows | None = None,
) -> tuple["pl.DataFrame", BoardSelection]:
    """Return a table of the counted rows with the columns that slices go by, and the boards worth
    showing.

    `sample` collects rows by rating band, `searched` the same rows with search. Without `players`,
    ratings and clocks are hidden from the network. With the `factor` that calibrated the network's
    value, `expected_before` is the expected score without it. Raises ConfigError if no row counts,
    or the network answers with NaN.
    """
    import polars as pl

    from engine.evaluation.handwritten import evaluate
    from model.metrics import rows as measured
    from pipeline.evaluation.moves import move_columns

    tables, boards, done, labelled = [], BoardSelection(), 0, 0
    for raw in batches:
        known = raw["label"] != NO_LABEL
        keep = (raw["ply"] >= rule.min_ply) & known
        done, labelled = done + len(keep), labelled + int(known.sum())
        if not keep.any():
            continue
        batch = raw if keep.all() else {name: values[keep] for name, values in raw.items()}
        shown = batch if players else hide_players(batch)
        logits_BA, wdl_B3 = network(batch["planes"], shown)
        figures = measured(logits_BA, wdl_B3, batch)
        if not all(np.isfinite(figures[name]).all() for name in ("nll", "legal_mass", "expected")):
            raise ConfigError(
                "the network answers with NaN or infinity: its training diverged, or its file is "
                "damaged"
            )
        columns: dict[str, NDArray[Any]] = {name: batch[name] for name in SLICED}
        columns["key"] = position_keys(batch["planes"], batch["castling"])
        columns["game"] = _game_ids(batch)
        columns |= figures | first_choice(logits_BA, figures["nll"], batch) | move_columns(batch)
        if factor is not None:
            columns["expected_before"] = _undo_calibration(wdl_B3, factor)
        classical = measured(*evaluate(batch["planes"]), batch)
        columns |= {f"classical_{figure}": classical[figure] for figure in ("rank", "nll", "brier")}
        boards.add(batch, columns)
        sample.add(batch, columns["game"])
        if searched is not None:
            searched.add(batch, (logits_BA, wdl_B3), shown["elo"], columns)
        tables.append(pl.DataFrame(columns))
        top1 = float((figures["rank"] == 1).mean())
        progress(Tick(done, rows, "positions", {"top1": top1}))
    if not labelled:
        raise ConfigError(
            f"none of the {done:,} positions has a known move, with which a network's choice could "
            f"be "
            "compared: report on a dataset of games, or of positions with moves"
        )
    if not tables:
        hint = ", or raise limit" if rule.limit else ""
        raise ConfigError(f"no position counts under this rule: lower min_ply{hint}")
    table = pl.concat(tables).with_columns(
        pl.col("score", "brier", "wdl_brier", "classical_brier").fill_nan(None)
    )
    return table, boards


def first_choice(
    logits_BA: NDArray[np.float32], nll_B: NDArray[Any], batch: Batch
) -> dict[str, NDArray[Any]]:
    """Return the label of the network's first choice among legal moves (the lowest of equals), and
    its probability.

    `nll_B` is minus the log of the played move's probability, from which the others follow.
    """
    choice_B = np.where(legal_mask(batch["planes"]), logits_BA, -np.inf).argmax(axis=1)
    rows_B = np.arange(len(choice_B))
    ahead_B = logits_BA[rows_B, choice_B] - logits_BA[rows_B, batch["label"].astype(np.int64)]
    return {"choice": choice_B, "choice_probability": np.exp(ahead_B - nll_B)}


def _undo_calibration(wdl_B3: NDArray[np.float32], factor: float) -> NDArray[Any]:
    """Return the expected scores with the value's logits divided by `factor`."""
    import torch

    from model.training.calibration import scale_wdl

    win_B, draw_B, _ = scale_wdl(torch.from_numpy(wdl_B3), 1 / factor).numpy().T
    return win_B + draw_B / 2  # type: ignore[no-any-return]


def _game_ids(batch: Batch) -> NDArray[np.uint64]:
    """Return a hash of each row's game that differs between datasets, which all number their games
    from 0.
    """
    elo = np.sort(np.stack([batch["elo"], batch["opponent_elo"]]), axis=0).astype(np.uint64)
    same = elo[0] << np.uint64(48) | elo[1] << np.uint64(32) | batch["plies"].astype(np.uint64)
    return splitmix64(splitmix64(same) ^ batch["game"].astype(np.uint64))
