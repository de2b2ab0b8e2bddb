"""Select positions, and measure a network and the hand-written player on each of them.

The result is a table with a row per position, from which figures.py computes a report. The second
half chooses the boards that the report shows.

Axes: B rows of a batch, N chosen rows, P planes, K piece types, A label (4096).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import chess
import numpy as np
from numpy.typing import NDArray

from engine.encoding.planes import LABELS, legal_mask, target_table
from engine.encoding.views import NO_LABEL, NO_LAST_MOVE
from engine.evaluation.move_features import CHECK, legal_move_features
from engine.progress import Progress, Tick
from model.settings import Count, settings
from pipeline.dataset.files.columns import BATCH_SENTINELS
from pipeline.dataset.files.shards import Batch
from pipeline.dataset.hashing import splitmix64
from pipeline.dataset.position_keys import hash_positions
from pipeline.errors import ConfigError
from pipeline.evaluation.charts import decode_board, decode_move

if TYPE_CHECKING:
    import polars as pl

    from model.inference.evaluator import NetworkEvaluator
    from model.inference.onnx_evaluator import OnnxEvaluator

PAWN, KING = 0, 5
MAX_PHASE_PIECES = (10, 6)
"""Maximum number of knights, bishops, rooks and queens in the middlegame and in the endgame, as
Lichess counts them."""
BATCH_ROWS = 1024
"""Positions that are evaluated together."""
COPIED_COLUMNS = ("ply", "elo", "opponent_elo", "clock", "base", "increment")
"""Columns of a dataset that are copied into the table of measured positions."""
MEASURED_COLUMNS = (
    *("planes", "castling", "ep_file", "halfmove", "label", "promotion", "last_move"),
    *("result", "plies", "game", *COPIED_COLUMNS),
)
"""Columns of a dataset that a measurement reads, besides the inputs of the network."""
COMMON_MIN_PLY, COMMON_MIN_CLOCK = 10, 30
"""First ply, and minimum seconds on the player's clock (if known), of most published results."""

SearchBatch = Callable[[Batch, NDArray[np.float32], NDArray[np.float32]], dict[str, NDArray[Any]]]
"""Function that searches a batch, given the network's logits and WDL, and returns more columns."""


@settings(ConfigError)
class PositionFilter:
    """Select the positions that a report counts."""

    min_ply: Count = 0
    """Number of half-moves at the start of each game that are not counted; 0 counts all."""
    limit: Count = 20_000
    """Maximum number of positions, sampled at random before min_ply is applied; 0 for all. With
    20,000, the 95 % interval of top-1 is about ±0.008."""

    def describe(self, where: str, *, common: bool = False) -> str:
        """Return the rule as text, for positions from `where`.

        `common` adds the conditions of most published results (COMMON_MIN_PLY, COMMON_MIN_CLOCK).
        """
        ply = max(self.min_ply, COMMON_MIN_PLY) if common else self.min_ply
        plies = f"from ply {ply} on" if ply else "every ply"
        clock = f", mover's clock at least {COMMON_MIN_CLOCK} s where known" if common else ""
        sample = f", a random sample of at most {self.limit:,} positions of all games"
        counted = f"{where}: {plies} of every game{clock}{sample if self.limit else ''}"
        return f"{counted}; only legal moves are ranked"


def select_counted(batch: Batch, rule: PositionFilter) -> Batch:
    """Return the rows of a batch that the rule counts; rows without a known move are left out."""
    keep_B = (batch["ply"] >= rule.min_ply) & (batch["label"] != NO_LABEL)
    return batch if keep_B.all() else {name: values[keep_B] for name, values in batch.items()}


def measure_rows(
    batches: Iterator[Batch],
    network: "NetworkEvaluator | OnnxEvaluator",
    rule: PositionFilter,
    rows: int,
    progress: Progress,
    *,
    players: bool = True,
    factor: float | None = None,
    search: SearchBatch | None = None,
) -> "pl.DataFrame":
    """Measure the network and the hand-written player on each counted row; return a table.

    The columns are listed in figures.py. `rows` is the number of rows in `batches`, for the
    progress. Without `players`, ratings and clocks are hidden from the network. `factor` is the
    calibration of its value; with it, the column `expected_before` has the expected score before
    calibration.

    Raises ConfigError if no row counts, or if the network returns NaN or infinity.
    """
    import polars as pl

    from engine.evaluation.handwritten import evaluate
    from model.metrics import output_metrics
    from model.network.encoder import CONDITION_STEPS

    tables, done = [], 0
    unknown = {} if players else {name: steps.unknown for name, steps in CONDITION_STEPS.items()}
    for read in batches:
        done, batch = done + len(read["label"]), select_counted(read, rule)
        if not len(batch["label"]):
            continue
        hidden = {name: value for name, value in unknown.items() if name in batch}
        inputs = batch | {name: np.full_like(batch[name], value) for name, value in hidden.items()}
        logits_BA, wdl_B3 = network(batch["planes"], inputs)
        figures = output_metrics(logits_BA, wdl_B3, batch)
        if not all(np.isfinite(figures[name]).all() for name in ("nll", "legal_mass", "expected")):
            why = "its training diverged, or its file is damaged: use another checkpoint"
            raise ConfigError(f"the network returned NaN or infinity: {why}")
        columns: dict[str, NDArray[Any]] = {name: batch[name] for name in COPIED_COLUMNS}
        columns["key"] = hash_positions(batch["planes"], batch["castling"])
        columns["game"] = _hash_games(batch)
        columns |= figures | find_first_choice(logits_BA, figures["nll"], batch)
        columns |= classify_moves(batch)
        if factor is not None:
            columns["expected_before"] = _undo_calibration(wdl_B3, factor)
        other = output_metrics(*evaluate(batch["planes"]), batch)
        columns |= {f"hand_written_{name}": other[name] for name in ("rank", "nll", "brier")}
        if search is not None:
            columns |= search(inputs, logits_BA, wdl_B3)
        tables.append(pl.DataFrame(columns))
        top1 = float((figures["rank"] == 1).mean())
        progress(Tick(done, rows, "positions", {"top1": top1}))
    if not tables:
        raise ConfigError(
            f"none of the {done:,} positions has a known move to compare with, from ply "
            f"{rule.min_ply} on: lower min_ply, raise limit, or use a dataset of games"
        )
    return pl.concat(tables).with_columns(
        pl.col("score", "brier", "wdl_brier", "hand_written_brier").fill_nan(None)
    )


def find_first_choice(
    logits_BA: NDArray[np.float32], nll_B: NDArray[Any], batch: Batch
) -> dict[str, NDArray[Any]]:
    """Return the label and probability of the network's first choice among legal moves.

    `nll_B` is the negative log-probability of the move played, as `output_metrics` returns it.
    """
    choice_B = np.where(legal_mask(batch["planes"]), logits_BA, -np.inf).argmax(axis=1)
    rows_B = np.arange(len(choice_B))
    ahead_B = logits_BA[rows_B, choice_B] - logits_BA[rows_B, batch["label"].astype(np.int64)]
    return {"choice": choice_B, "choice_probability": np.exp(ahead_B - nll_B)}


def _undo_calibration(wdl_B3: NDArray[np.float32], factor: float) -> NDArray[Any]:
    """Return the expected scores after dividing the value logits by `factor`."""
    import torch

    from model.calibration import scale_wdl

    win_B, draw_B, _ = scale_wdl(torch.from_numpy(wdl_B3), 1 / factor).numpy().T
    return win_B + draw_B / 2  # type: ignore[no-any-return]


def _hash_games(batch: Batch) -> NDArray[np.uint64]:
    """Return a hash of each row's game; its number alone is not unique across datasets."""
    elo = np.sort(np.stack([batch["elo"], batch["opponent_elo"]]), axis=0).astype(np.uint64)
    same = elo[0] << np.uint64(48) | elo[1] << np.uint64(32) | batch["plies"].astype(np.uint64)
    return splitmix64(splitmix64(same) ^ batch["game"].astype(np.uint64))


def classify_moves(batch: Batch) -> dict[str, NDArray[Any]]:
    """Describe each row's move (`label`) and the board before it; return arrays [B].

    They are `piece` (index into PIECE_NAMES), `phase` (index into PHASE_NAMES), and a boolean array
    for each of MOVE_KINDS. `batch` needs the columns planes, label and last_move.
    """
    planes_BP, label_B = batch["planes"], batch["label"].astype(np.int64)
    start_B, target_B = label_B % 64, target_table()[label_B].astype(np.int64)
    rows_B = np.arange(len(label_B))
    own_BK = (planes_BP[:, 0:12:2] >> start_B[:, None].astype(np.uint64)) & np.uint64(1)
    piece_B = own_BK.argmax(axis=1)
    theirs_BK = (planes_BP[:, 1:12:2] >> target_B[:, None].astype(np.uint64)) & np.uint64(1)
    files_B = np.abs(start_B % 8 - target_B % 8)  # number of files between the squares
    capture_B = theirs_BK.any(axis=1) | ((piece_B == PAWN) & (files_B > 0))
    last_B = batch["last_move"].astype(np.int64)
    features = legal_move_features(planes_BP)
    place_B = np.searchsorted(features["moves"], rows_B * LABELS + label_B)
    kinds = {
        "capture": capture_B,
        "recapture": capture_B & (last_B != NO_LAST_MOVE) & (last_B % 64 == target_B),
        "check": features["move_features"][place_B, CHECK] > 0,
        "castling": (piece_B == KING) & (files_B == 2),
        "promotion": (piece_B == PAWN) & ((target_B < 8) | (target_B >= 56)),
    }
    # planes 2 to 9: knights, bishops, rooks and queens of both sides
    count_B = np.bitwise_count(planes_BP[:, 2:10]).sum(axis=1, dtype=np.int64)
    phase_B = np.sum([count_B <= most for most in MAX_PHASE_PIECES], axis=0)
    quiet_B = ~np.logical_or.reduce(list(kinds.values()))
    return {
        "piece": piece_B.astype(np.int8),
        "phase": phase_B.astype(np.int8),
        **kinds,
        "quiet": quiet_B,
    }


# ---------------------------------------------------------------- boards


MAX_BOARDS = 12
"""Maximum number of boards in a section."""
CHOICE_COLUMNS = ("rank", "nll", "choice", "choice_probability")
"""Columns of a network's table that describe its choice on a board."""


class BoardSection(NamedTuple):
    """A kind of board that a report shows: a title, and how its rows are chosen from the table."""

    title: str
    selects: "Callable[[pl.DataFrame], pl.Series]"
    """Returns whether each row may be shown."""
    score: "Callable[[pl.DataFrame], pl.Series]"
    """Returns a number for each row; rows with the highest are shown first."""
    by_band: bool = False
    """Whether to divide the boards evenly over the rating bands of the players."""


BOARD_SECTIONS = {
    "quiet_finds": BoardSection(
        "A quiet move that it expected",
        lambda rows: (rows["rank"] == 1) & rows["quiet"],
        lambda rows: rows["hand_written_nll"] - rows["nll"],
    ),
    "sure_and_wrong": BoardSection(
        "It was sure of another move",
        lambda rows: rows["rank"] > 1,
        lambda rows: rows["choice_probability"],
    ),
    "disagreement": BoardSection(
        "A move that it hardly expected",
        lambda rows: rows["rank"] > 1,
        lambda rows: rows["nll"],
        by_band=True,
    ),
}
COMPARISON_SECTIONS = {
    "found": BoardSection(
        "Only {name} expected it",
        lambda rows: (rows["rank"] == 1) & (rows["reference_rank"] > 1),
        lambda rows: rows["reference_nll"] - rows["nll"],
    ),
    "missed": BoardSection(
        "Only {reference} expected it",
        lambda rows: (rows["rank"] > 1) & (rows["reference_rank"] == 1),
        lambda rows: rows["nll"] - rows["reference_nll"],
    ),
}
"""Kinds of boards on which a network and the one that it is compared with differ."""


def choose_rows(table: "pl.DataFrame", section: BoardSection) -> list[int]:
    """Return the numbers of the rows that a section shows, at most one per game and position."""
    import polars as pl

    rows = table.with_row_index("row").with_columns(order=section.score(table))
    rows = rows.filter(section.selects(table)).sort("order", descending=True, maintain_order=True)
    for name in ("game", "key"):
        rows = rows.unique(name, keep="first", maintain_order=True)
    if section.by_band:  # take the best of each band, then the second best, until there are enough
        rows = rows.filter(pl.col("elo") != BATCH_SENTINELS["elo"])
        rows = rows.with_columns(place=pl.int_range(pl.len()).over("band"))
        rows = rows.sort("place", "band").head(MAX_BOARDS).sort("band", "place")
    return rows["row"].head(MAX_BOARDS).to_list()


def take_rows(batches: Iterator[Batch], rule: PositionFilter, chosen: Sequence[int]) -> Batch:
    """Return the counted rows of `batches` with the given numbers, in the given order."""
    number_N = np.asarray(chosen, dtype=np.int64)
    parts, places, begin = [], [], 0
    for batch in (select_counted(read, rule) for read in batches):
        end = begin + len(batch["label"])
        place_N = np.flatnonzero((number_N >= begin) & (number_N < end))
        parts.append({name: values[number_N[place_N] - begin] for name, values in batch.items()})
        places.append(place_N)
        begin = end
    order_N = np.argsort(np.concatenate(places))
    return {name: np.concatenate([part[name] for part in parts])[order_N] for name in parts[0]}


def describe_position(batch: Batch, at: int, figures: Mapping[str, Any]) -> dict[str, Any]:
    """Return a position as JSON: FEN, moves in UCI, probabilities, ratings and time control.

    `at` is its row in the batch. `figures` is its row in the network's table. If the table also has
    the choice of a reference (columns `reference_*`), `reference` describes it.
    """
    names = ("castling", "ep_file", "label", "promotion", "game", *COPIED_COLUMNS)
    row = {name: int(batch[name][at]) for name in names}
    board = decode_board(batch["planes"][at], row["castling"], row["ep_file"], row["ply"])
    played = decode_move(board, row["label"], row["promotion"])
    choice = _describe_choice(board, figures, "")
    if "reference_choice" in figures:
        choice["reference"] = _describe_choice(board, figures, "reference_")
    known = {
        name: None if BATCH_SENTINELS.get(name) == row[name] else row[name]
        for name in ("game", *COPIED_COLUMNS)
    }
    return {"fen": board.fen(), "played": played.uci(), **choice, **known}


def _describe_choice(board: chess.Board, figures: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """Return a network's first choice in a row, and the rank of the move played."""
    return {
        "chosen": decode_move(board, figures[f"{prefix}choice"]).uci(),
        "played_probability": float(np.exp(-figures[f"{prefix}nll"])),
        "chosen_probability": figures[f"{prefix}choice_probability"],
        "rank": figures[f"{prefix}rank"],
    }
