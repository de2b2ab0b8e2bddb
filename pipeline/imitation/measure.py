"""Measure networks on the same positions of one person, held out of training.

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
from pipeline.evaluation.charts import decode_board, decode_move, format_san
from pipeline.evaluation.figures import paired_difference
from pipeline.evaluation.measure import (
    BATCH_ROWS,
    MEASURED_COLUMNS,
    BoardSection,
    choose_rows,
    describe_position,
    find_first_choice,
)

if TYPE_CHECKING:
    import polars as pl

    from model.inference.evaluator import NetworkEvaluator

MAX_ROWS = 50_000
"""Number of positions above which a random sample of this size is measured; it takes 60 MB."""
LATE_PLY = 22
"""First ply of "late" moves, from the 12th move of each side on."""
OPENING_PLIES = 16
"""Half-moves that count as the opening."""
MAX_OPENINGS, MAX_OPENING_MOVES = 8, 3
"""Maximum number of opening positions on the page, and of moves for each of them."""


def read_rows(dataset: Dataset, split: str, columns: Sequence[str]) -> Batch:
    """Read MEASURED_COLUMNS and `columns` of a split's rows, or of MAX_ROWS random ones."""
    batches = Batches(
        [dataset], split, batch_size=BATCH_ROWS, columns=(*MEASURED_COLUMNS, *columns)
    )
    parts = list(batches.sample(MAX_ROWS) if batches.rows > MAX_ROWS else batches.read_rows())
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def measure_policy(network: "NetworkEvaluator", rows: Batch, progress: Progress) -> "pl.DataFrame":
    """Return a table with the rank and nll of each move played, and the network's first choice."""
    import polars as pl

    from model.metrics import output_metrics

    tables, count = [], len(rows["ply"])
    for at in range(0, count, BATCH_ROWS):
        batch = {name: values[at : at + BATCH_ROWS] for name, values in rows.items()}
        logits_BL, wdl_B3 = network(batch["planes"], batch)
        metrics = output_metrics(logits_BL, wdl_B3, batch)
        figures = {name: metrics[name] for name in ("rank", "nll")}
        figures |= find_first_choice(logits_BL, figures["nll"], batch)
        figures |= {name: batch[name] for name in ("game", "ply", "result")}
        figures["key"] = hash_positions(batch["planes"], batch["castling"])
        tables.append(pl.DataFrame(figures))
        top1 = float((figures["rank"] == 1).mean())
        progress(Tick(at + len(batch["ply"]), count, "positions", {"top1": top1}))
    return pl.concat(tables)


def compare(name: str, base: "pl.DataFrame", table: "pl.DataFrame") -> dict[str, Any]:
    """Return a network's accuracy and its paired difference from the base, by part of the moves.

    The parts are `all` moves, and `late` ones from LATE_PLY on; a part without moves is left out.
    The tables are from `measure_policy`, for the same positions.
    """
    import polars as pl

    found: dict[str, Any] = {"name": name}
    for part, first in (("all", 0), ("late", LATE_PLY)):
        before, after = (rows.filter(pl.col("ply") >= first) for rows in (base, table))
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

    Moves whose probability rose most come first. Each is from `describe_position`: `chosen` is the
    first choice of the base. `imitated_probability` is the imitation's probability of the move.
    """
    late = imitation["ply"] >= LATE_PLY
    section = BoardSection(
        "Moves that only the imitation predicts",
        lambda rows: (imitation["rank"] == 1) & (rows["rank"] > 1) & late,
        lambda rows: rows["nll"] - imitation["nll"],
    )
    return [
        describe_position(rows, at, base.row(at, named=True))
        | {"imitated_probability": float(np.exp(-imitation["nll"][at]))}
        for at in choose_rows(base, section)
    ]


def find_openings(
    rows: Batch, base: "NetworkEvaluator", imitation: "NetworkEvaluator", keys_R: NDArray[np.uint64]
) -> list[dict[str, Any]]:
    """Return the person's most frequent opening positions, with their moves and both policies.

    `keys_R` are the keys of the positions (`hash_positions`).
    """
    early_R = np.flatnonzero(rows["ply"] < OPENING_PLIES)
    keys, counts = np.unique(keys_R[early_R], return_counts=True)
    found = []
    for key in keys[np.argsort(-counts, kind="stable")][:MAX_OPENINGS]:
        at = early_R[keys_R[early_R] == key]
        batch = {name: values[at] for name, values in rows.items()}
        policies = _mean_policy(imitation, batch), _mean_policy(base, batch)
        found.append(_describe_opening(batch, *policies))
    return found


def _mean_policy(network: "NetworkEvaluator", batch: Batch) -> NDArray[np.float64]:
    """Return a network's mean policy, float64[L], over rows that have the same position."""
    logits_RL = network(batch["planes"], batch)[0].astype(np.float64)
    logits_RL = np.where(legal_mask(batch["planes"]), logits_RL, -np.inf)
    powers_RL = np.exp(logits_RL - logits_RL.max(axis=1, keepdims=True))
    mean_L: NDArray[np.float64] = (powers_RL / powers_RL.sum(axis=1, keepdims=True)).mean(axis=0)
    return mean_L


def _describe_opening(
    batch: Batch, imitation_L: NDArray[np.float64], base_L: NDArray[np.float64]
) -> dict[str, Any]:
    """Return an opening position as JSON, from its rows: FEN, moves, and the arrows of a board.

    The arrows are those of `charts.draw_position`, with the person's most frequent move as the move
    played.
    """
    board = decode_board(*(batch[name][0] for name in ("planes", "castling", "ep_file", "ply")))
    labels, times = np.unique(batch["label"], return_counts=True)
    order = np.argsort(-times, kind="stable")[:MAX_OPENING_MOVES].tolist()
    moves = [
        {
            "san": format_san(board, decode_move(board, int(labels[at]))),
            "played": int(times[at]) / len(batch["label"]),
            "imitation": float(imitation_L[labels[at]]),
            "base": float(base_L[labels[at]]),
        }
        for at in order
    ]
    main, first = (
        decode_move(board, int(label)).uci() for label in (labels[order[0]], imitation_L.argmax())
    )
    arrows = {"played": main, "chosen": first, "rank": 1 + (main != first)}
    return {"fen": board.fen(), "times": len(batch["label"]), "moves": moves, **arrows}
