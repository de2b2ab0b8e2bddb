"""Measure the network and the hand-written player on every counted position.

Axes: B rows of a batch, R rows of a report, P planes, K piece types, A label (4096).
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
from pipeline.evaluation.charts import board_of, move_from_label

if TYPE_CHECKING:
    import polars as pl

    from model.inference.evaluator import NetworkEvaluator
    from model.inference.onnx_evaluator import OnnxEvaluator

PAWN, KING = 0, 5
PHASE_PIECES = (10, 6)
"""Maximum number of knights, bishops, rooks and queens in the middlegame and in the endgame, as
Lichess counts them."""
BATCH = 1024
KNOWN_COLUMNS = ("ply", "elo", "opponent_elo", "clock", "base", "increment")
"""Columns of a dataset that are copied into the table."""
COLUMNS = (
    *("planes", "castling", "ep_file", "halfmove", "label", "promotion", "last_move"),
    *("result", "plies", "game", *KNOWN_COLUMNS),
)
COMMON_PLY, COMMON_CLOCK = 10, 30
"""First ply, and minimum seconds on the clock (if known), in most published results on human
moves."""

Search = Callable[[Batch, NDArray[np.float32], NDArray[np.float32]], dict[str, NDArray[Any]]]
"""Searches a batch, given the network's logits and WDL, and returns further columns."""


@settings(ConfigError)
class PositionFilter:
    """The rule that selects the positions to count."""

    min_ply: Count = 0
    """First ply to count; 0 counts every position."""
    limit: Count = 20_000
    """Maximum number of positions, sampled before min_ply is applied; 0 for all. With 20,000, the
    95 % interval of top-1 is about ±0.008."""

    def describe(self, where: str, *, common: bool = False) -> str:
        """Return the rule as text; `common` adds the usual conditions of published results."""
        ply = max(self.min_ply, COMMON_PLY) if common else self.min_ply
        plies = f"from ply {ply} on" if ply else "every ply"
        clock = f", mover's clock at least {COMMON_CLOCK} s where known" if common else ""
        sample = f", a random sample of at most {self.limit:,} positions of all games"
        counted = f"{where}: {plies} of every game{clock}{sample if self.limit else ''}"
        return f"{counted}; illegal moves are masked before ranking"


def select_counted(batch: Batch, rule: PositionFilter) -> Batch:
    """Return the rows of a batch that the rule counts: those with a known move."""
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
    search: Search | None = None,
) -> "pl.DataFrame":
    """Measure the counted rows of `batches`, which have `rows` rows; return them as a table.

    Without `players`, ratings and clocks are hidden from the network. `factor` is the calibration
    of the network's value; with it, the column `expected_before` has the uncalibrated expected
    score. Raises ConfigError if no row counts, or the network returns NaN or infinity.
    """
    import polars as pl

    from engine.evaluation.handwritten import evaluate
    from model.metrics import output_metrics
    from model.network.encoder import CONDITION_STEPS

    tables, done = [], 0
    hidden = {} if players else {name: steps.unknown for name, steps in CONDITION_STEPS.items()}
    for raw in batches:
        done, batch = done + len(raw["label"]), select_counted(raw, rule)
        if not len(batch["label"]):
            continue
        unknown = {name: value for name, value in hidden.items() if name in batch}
        shown = batch | {name: np.full_like(batch[name], one) for name, one in unknown.items()}
        logits_BA, wdl_B3 = network(batch["planes"], shown)
        figures = output_metrics(logits_BA, wdl_B3, batch)
        if not all(np.isfinite(figures[name]).all() for name in ("nll", "legal_mass", "expected")):
            why = "its training diverged, or its file is damaged: use another checkpoint"
            raise ConfigError(f"the network returned NaN or infinity: {why}")
        columns: dict[str, NDArray[Any]] = {name: batch[name] for name in KNOWN_COLUMNS}
        columns["key"] = hash_positions(batch["planes"], batch["castling"])
        columns["game"] = _game_ids(batch)
        columns |= figures | first_choice(logits_BA, figures["nll"], batch) | move_columns(batch)
        if factor is not None:
            columns["expected_before"] = _undo_calibration(wdl_B3, factor)
        classical = output_metrics(*evaluate(batch["planes"]), batch)
        columns |= {f"classical_{figure}": classical[figure] for figure in ("rank", "nll", "brier")}
        if search is not None:
            columns |= search(shown, logits_BA, wdl_B3)
        tables.append(pl.DataFrame(columns))
        top1 = float((figures["rank"] == 1).mean())
        progress(Tick(done, rows, "positions", {"top1": top1}))
    if not tables:
        raise ConfigError(
            f"none of the {done:,} positions has a known move to compare with, from ply "
            f"{rule.min_ply} on: lower min_ply, raise limit, or use a dataset of games"
        )
    return pl.concat(tables).with_columns(
        pl.col("score", "brier", "wdl_brier", "classical_brier").fill_nan(None)
    )


def first_choice(
    logits_BA: NDArray[np.float32], nll_B: NDArray[Any], batch: Batch
) -> dict[str, NDArray[Any]]:
    """Return the label and probability of the network's first choice among legal moves.

    `nll_B` is the negative log-probability of the played move; the probability is computed from it.
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


def _game_ids(batch: Batch) -> NDArray[np.uint64]:
    """Return a hash for each row's game; games of different datasets have different hashes."""
    elo = np.sort(np.stack([batch["elo"], batch["opponent_elo"]]), axis=0).astype(np.uint64)
    same = elo[0] << np.uint64(48) | elo[1] << np.uint64(32) | batch["plies"].astype(np.uint64)
    return splitmix64(splitmix64(same) ^ batch["game"].astype(np.uint64))


def move_columns(batch: Batch) -> dict[str, NDArray[Any]]:
    """Return `piece`, `phase` and a boolean column for each of KINDS, [B] each.

    They describe the played move (`label`) and the board before it. Needs the columns planes, label
    and last_move.
    """
    planes_BP, label_B = batch["planes"], batch["label"].astype(np.int64)
    start_B, target_B = label_B % 64, target_table()[label_B].astype(np.int64)
    rows_B = np.arange(len(label_B))
    own_BK = (planes_BP[:, 0:12:2] >> start_B[:, None].astype(np.uint64)) & np.uint64(1)
    piece_B = own_BK.argmax(axis=1)
    theirs_BK = (planes_BP[:, 1:12:2] >> target_B[:, None].astype(np.uint64)) & np.uint64(1)
    aside_B = np.abs(start_B % 8 - target_B % 8)
    capture_B = theirs_BK.any(axis=1) | ((piece_B == PAWN) & (aside_B > 0))
    last_B = batch["last_move"].astype(np.int64)
    features = legal_move_features(planes_BP)
    place_B = np.searchsorted(features["moves"], rows_B * LABELS + label_B)
    kinds = {
        "capture": capture_B,
        "recapture": capture_B & (last_B != NO_LAST_MOVE) & (last_B % 64 == target_B),
        "check": features["move_features"][place_B, CHECK] > 0,
        "castling": (piece_B == KING) & (aside_B == 2),
        "promotion": (piece_B == PAWN) & ((target_B < 8) | (target_B >= 56)),
    }
    officers_B = np.bitwise_count(planes_BP[:, 2:10]).sum(axis=1, dtype=np.int64)
    phase_B = (officers_B <= PHASE_PIECES[0]).astype(np.int8) + (officers_B <= PHASE_PIECES[1])
    quiet_B = ~np.logical_or.reduce(list(kinds.values()))
    return {
        "piece": piece_B.astype(np.int8),
        "phase": phase_B.astype(np.int8),
        **kinds,
        "quiet": quiet_B,
    }


# ---------------------------------------------------------------- boards


BOARDS = 12
"""Maximum number of boards in a section."""
CHOICE = ("rank", "nll", "choice", "choice_probability")
"""Columns of a network's table that boards need."""


class Section(NamedTuple):
    """A section of boards: the rows of a table that it may show, and their order."""

    title: str
    selects: "Callable[[pl.DataFrame], pl.Series]"
    score: "Callable[[pl.DataFrame], pl.Series]"
    """Rows with the highest scores come first."""
    by_band: bool = False
    """Whether to divide the boards evenly over the rating bands of the movers."""


SECTIONS = {
    "quiet_finds": Section(
        "A quiet move that it expected",
        lambda rows: (rows["rank"] == 1) & rows["quiet"],
        lambda rows: rows["classical_nll"] - rows["nll"],
    ),
    "sure_and_wrong": Section(
        "It was sure of another move",
        lambda rows: rows["rank"] > 1,
        lambda rows: rows["choice_probability"],
    ),
    "disagreement": Section(
        "A move that it hardly expected",
        lambda rows: rows["rank"] > 1,
        lambda rows: rows["nll"],
        by_band=True,
    ),
}
COMPARED_SECTIONS = {
    "found": Section(
        "Only {name} expected it",
        lambda rows: (rows["rank"] == 1) & (rows["reference_rank"] > 1),
        lambda rows: rows["reference_nll"] - rows["nll"],
    ),
    "missed": Section(
        "Only {reference} expected it",
        lambda rows: (rows["rank"] > 1) & (rows["reference_rank"] == 1),
        lambda rows: rows["nll"] - rows["reference_nll"],
    ),
}
"""Sections of boards on which a network differs from a reference."""


def choose_rows(table: "pl.DataFrame", section: Section) -> list[int]:
    """Return the numbers of a section's rows, at most one per game and per position."""
    import polars as pl

    rows = table.with_row_index("row").with_columns(order=section.score(table))
    rows = rows.filter(section.selects(table)).sort("order", descending=True, maintain_order=True)
    for name in ("game", "key"):
        rows = rows.unique(name, keep="first", maintain_order=True)
    if section.by_band:  # the best of each band, then the second best, until there are enough
        rows = rows.filter(pl.col("elo") != BATCH_SENTINELS["elo"])
        rows = rows.with_columns(turn=pl.int_range(pl.len()).over("band"))
        rows = rows.sort("turn", "band").head(BOARDS).sort("band", "turn")
    return rows["row"].head(BOARDS).to_list()


def take_rows(batches: Iterator[Batch], rule: PositionFilter, chosen: Sequence[int]) -> Batch:
    """Return the counted rows of `batches` with the given numbers, in the given order."""
    number_N = np.asarray(chosen, dtype=np.int64)
    parts, places, begin = [], [], 0
    for batch in (select_counted(raw, rule) for raw in batches):
        end = begin + len(batch["label"])
        place_N = np.flatnonzero((number_N >= begin) & (number_N < end))
        parts.append({name: one[number_N[place_N] - begin] for name, one in batch.items()})
        places.append(place_N)
        begin = end
    order_N = np.argsort(np.concatenate(places))
    return {name: np.concatenate([one[name] for one in parts])[order_N] for name in parts[0]}


def board_row(batch: Batch, at: int, figures: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row as JSON: FEN, the played and chosen moves in UCI, ratings and time control.

    `figures` is the row of the network's table. `reference` has another network's choice, if
    `figures` has one.
    """
    names = ("castling", "ep_file", "label", "promotion", "game", *KNOWN_COLUMNS)
    row = {name: int(batch[name][at]) for name in names}
    board = board_of(batch["planes"][at], row["castling"], row["ep_file"], row["ply"])
    played = move_from_label(board, row["label"], row["promotion"])
    choice = _describe_choice(board, figures, "")
    if "reference_choice" in figures:
        choice["reference"] = _describe_choice(board, figures, "reference_")
    known = {
        name: None if BATCH_SENTINELS.get(name) == row[name] else row[name]
        for name in ("game", *KNOWN_COLUMNS)
    }
    return {"fen": board.fen(), "played": played.uci(), **choice, **known}


def _describe_choice(board: chess.Board, figures: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """Return a network's first choice in a row, and the rank of the move played."""
    return {
        "chosen": move_from_label(board, figures[f"{prefix}choice"]).uci(),
        "played_probability": float(np.exp(-figures[f"{prefix}nll"])),
        "chosen_probability": figures[f"{prefix}choice_probability"],
        "rank": figures[f"{prefix}rank"],
    }
