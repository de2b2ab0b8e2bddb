"""Measure networks on the same held-out positions: those of a person's newest games.

Axes: R rows, L labels (4096).
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from engine.encoding.planes import legal_mask
from engine.progress import Progress, Tick
from pipeline.dataset.batches import Batches
from pipeline.dataset.dataset import Dataset
from pipeline.dataset.files.shards import Batch
from pipeline.dataset.position_keys import hash_positions
from pipeline.evaluation.charts import board_of, move_from_label, san
from pipeline.evaluation.figures import paired_difference
from pipeline.evaluation.measure import (
    BATCH,
    COLUMNS,
    Section,
    board_row,
    choose_rows,
    first_choice,
)

if TYPE_CHECKING:
    import polars as pl

    from model.inference.evaluator import NetworkEvaluator

MAX_ROWS = 50_000
"""Maximum number of positions to measure; more are sampled. 50,000 positions take 60 MB of
memory."""
LATE_PLY = 22
"""First ply of "late" moves, from the 12th move of each side on."""
OPENING_PLIES, OPENINGS, OPENING_MOVES = 16, 8, 3
"""Half-moves that count as the opening, positions that the page shows, and moves per position."""


def read_rows(dataset: Dataset, split: str, columns: Sequence[str]) -> Batch:
    """Read the columns to measure, from all rows of a split or MAX_ROWS random ones."""
    batches = Batches([dataset], split, batch_size=BATCH, columns=(*COLUMNS, *columns))
    parts = list(batches.sample(MAX_ROWS) if batches.rows > MAX_ROWS else batches.read_rows())
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def measure(network: "NetworkEvaluator", rows: Batch, progress: Progress) -> "pl.DataFrame":
    """Return a table of the network's rank, nll and first choice in each row, with row details."""
    import polars as pl

    from model.metrics import output_metrics

    tables, count = [], len(rows["ply"])
    for at in range(0, count, BATCH):
        batch = {name: values[at : at + BATCH] for name, values in rows.items()}
        logits_BL, wdl_B3 = network(batch["planes"], batch)
        every = output_metrics(logits_BL, wdl_B3, batch)
        figures = {name: every[name] for name in ("rank", "nll")}
        figures |= first_choice(logits_BL, figures["nll"], batch)
        figures |= {name: batch[name] for name in ("game", "ply", "result")}
        figures["key"] = hash_positions(batch["planes"], batch["castling"])
        tables.append(pl.DataFrame(figures))
        top1 = float((figures["rank"] == 1).mean())
        progress(Tick(at + len(batch["ply"]), count, "positions", {"top1": top1}))
    return pl.concat(tables)


def compare(name: str, base: "pl.DataFrame", table: "pl.DataFrame") -> dict[str, Any]:
    """Return a network's figures and paired differences from the base: `all` and `late` moves."""
    import polars as pl

    found: dict[str, Any] = {"name": name}
    for part, first in (("all", 0), ("late", LATE_PLY)):
        before, after = (one.filter(pl.col("ply") >= first) for one in (base, table))
        if len(after):
            found[part] = {
                "positions": len(after),
                "games": after["game"].n_unique(),
                "top1": float((after["rank"] == 1).to_numpy().mean()),
                "cross_entropy": after["nll"].mean(),
                **paired_difference(before, after),
            }
    return found


def find_boards(
    rows: Batch, base: "pl.DataFrame", imitation: "pl.DataFrame"
) -> list[dict[str, Any]]:
    """Return late moves that the imitation predicts and the base does not, at most one per game.

    Moves whose probability rose most come first. As on the report's boards, `chosen` is the first
    choice of the base. `imitated_probability` is the probability that the imitation gives the move.
    """
    late = imitation["ply"] >= LATE_PLY
    found = Section(
        "found",
        lambda rows: (imitation["rank"] == 1) & (rows["rank"] > 1) & late,
        lambda rows: rows["nll"] - imitation["nll"],
    )
    return [
        board_row(rows, at, base.row(at, named=True))
        | {"imitated_probability": float(np.exp(-imitation["nll"][at]))}
        for at in choose_rows(base, found)
    ]


def find_openings(
    rows: Batch, base: "NetworkEvaluator", imitation: "NetworkEvaluator", keys_R: NDArray[np.uint64]
) -> list[dict[str, Any]]:
    """Return the person's most frequent opening positions, with moves and both policies."""
    early_R = np.flatnonzero(rows["ply"] < OPENING_PLIES)
    keys, counts = np.unique(keys_R[early_R], return_counts=True)
    found = []
    for key in keys[np.argsort(-counts, kind="stable")][:OPENINGS]:
        at = early_R[keys_R[early_R] == key]
        batch = {name: values[at] for name, values in rows.items()}
        policies = _mean_policy(imitation, batch), _mean_policy(base, batch)
        found.append(_describe_opening(batch, *policies))
    return found


def _mean_policy(network: "NetworkEvaluator", batch: Batch) -> NDArray[np.float64]:
    """Return the network's mean policy over rows with the same position, float64[L]."""
    logits_RL = network(batch["planes"], batch)[0].astype(np.float64)
    logits_RL = np.where(legal_mask(batch["planes"]), logits_RL, -np.inf)
    powers_RL = np.exp(logits_RL - logits_RL.max(axis=1, keepdims=True))
    mean_L: NDArray[np.float64] = (powers_RL / powers_RL.sum(axis=1, keepdims=True)).mean(axis=0)
    return mean_L


def _describe_opening(
    batch: Batch, imitation_L: NDArray[np.float64], base_L: NDArray[np.float64]
) -> dict[str, Any]:
    """Return an opening position as JSON: its moves, and arrows for the most frequent one and the
    imitation's first choice.
    """
    board = board_of(*(batch[name][0] for name in ("planes", "castling", "ep_file", "ply")))
    labels, times = np.unique(batch["label"], return_counts=True)
    order = np.argsort(-times, kind="stable")[:OPENING_MOVES].tolist()
    moves = [
        {
            "san": san(board, move_from_label(board, int(labels[at]))),
            "played": int(times[at]) / len(batch["label"]),
            "imitation": float(imitation_L[labels[at]]),
            "base": float(base_L[labels[at]]),
        }
        for at in order
    ]
    main, first = (
        move_from_label(board, int(label)).uci()
        for label in (labels[order[0]], imitation_L.argmax())
    )
    arrows = {"played": main, "chosen": first, "rank": 1 + (main != first)}
    return {"fen": board.fen(), "times": len(batch["label"]), "moves": moves, **arrows}
