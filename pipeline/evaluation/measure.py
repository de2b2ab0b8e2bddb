"""Measure the network and the hand-written player on every counted position.

Axes: B rows of a batch, R rows of a report, P planes, K piece types, A label (4096).
"""

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

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
from pipeline.dataset.position_keys import position_keys
from pipeline.dataset.strata import RATING_EDGES, rating_band
from pipeline.errors import ConfigError
from pipeline.evaluation.charts import board_of, move_from_label

if TYPE_CHECKING:
    import polars as pl

    from model.inference.evaluator import NetworkEvaluator
    from model.inference.onnx_evaluator import OnnxEvaluator
    from pipeline.evaluation.human_search import SearchedRows
    from pipeline.evaluation.rating_matrix import BandSample

PAWN, KING = 0, 5
PHASE_PIECES = (10, 6)
"""Maximum number of knights, bishops, rooks and queens in the middlegame and in the endgame, as
Lichess counts them."""
BATCH = 1024
CLOCK_COLUMNS = ("clock", "base", "increment")
SLICE_COLUMNS = (
    "castling",
    "label",
    "result",
    "ply",
    "plies",
    "elo",
    "opponent_elo",
    "game",
    *CLOCK_COLUMNS,
)
COLUMNS = ("planes", *SLICE_COLUMNS, "promotion", "last_move", "ep_file")
COMMON_PLY, COMMON_CLOCK = 10, 30
"""First ply, and minimum seconds on the clock (if known), in most published results on human
moves."""


@settings(ConfigError)
class Rule:
    """The rule that selects the positions to count."""

    min_ply: Count = 0
    """First ply to count; 0 counts every position."""
    limit: Count = 20_000
    """Maximum number of positions, sampled before min_ply is applied; 0 for all. 20,000 determine
    top-1 to ±0.008."""

    def describe(self, where: str, *, common: bool = False) -> str:
        """Return the rule as text; `common` adds the usual conditions of published results."""
        ply = max(self.min_ply, COMMON_PLY) if common else self.min_ply
        plies = f"from ply {ply} on" if ply else "every ply"
        clock = f", mover's clock at least {COMMON_CLOCK} s where known" if common else ""
        sample = f", a random sample of at most {self.limit:,} positions of all games"
        counted = f"{where}: {plies} of every game{clock}{sample if self.limit else ''}"
        return f"{counted}; illegal moves are masked before ranking"


def hide_players(batch: Batch) -> Batch:
    """Return a copy of the batch with all ratings and clocks set to unknown."""
    from model.network.encoder import STEPS

    return batch | {
        name: np.full_like(batch[name], steps.unknown)
        for name, steps in STEPS.items()
        if name in batch
    }


def select_counted(batch: Batch, rule: Rule) -> Batch:
    """Return the rows of a batch that the rule counts: those with a known move."""
    keep_B = (batch["ply"] >= rule.min_ply) & (batch["label"] != NO_LABEL)
    return batch if keep_B.all() else {name: values[keep_B] for name, values in batch.items()}


def measure_rows(
    batches: Iterator[Batch],
    network: "NetworkEvaluator | OnnxEvaluator",
    rule: Rule,
    rows: int,
    players: bool,
    sample: "BandSample | None",
    progress: Progress,
    factor: float | None = None,
    searched: "SearchedRows | None" = None,
) -> tuple["pl.DataFrame", "BoardSelection"]:
    """Measure the counted rows; return them as a table, and the boards worth showing.

    `sample` collects rows by rating band. `searched` searches the counted rows. Without `players`,
    ratings and clocks are hidden from the network. `factor` is the calibration of the network's
    value; with it, the column `expected_before` has the uncalibrated expected score. Raises
    ConfigError if no row counts, or the network returns NaN or infinity.
    """
    import polars as pl

    from engine.evaluation.handwritten import evaluate
    from model.metrics import rows as measured

    tables, boards, done, labelled = [], BoardSelection(), 0, 0
    for raw in batches:
        done, labelled = done + len(raw["label"]), labelled + int((raw["label"] != NO_LABEL).sum())
        batch = select_counted(raw, rule)
        if not len(batch["label"]):
            continue
        shown = batch if players else hide_players(batch)
        logits_BA, wdl_B3 = network(batch["planes"], shown)
        figures = measured(logits_BA, wdl_B3, batch)
        if not all(np.isfinite(figures[name]).all() for name in ("nll", "legal_mass", "expected")):
            why = "its training diverged, or its file is damaged: use another checkpoint"
            raise ConfigError(f"the network returned NaN or infinity: {why}")
        columns: dict[str, NDArray[Any]] = {name: batch[name] for name in SLICE_COLUMNS}
        columns["key"] = position_keys(batch["planes"], batch["castling"])
        columns["game"] = _game_ids(batch)
        columns |= figures | first_choice(logits_BA, figures["nll"], batch) | move_columns(batch)
        if factor is not None:
            columns["expected_before"] = _undo_calibration(wdl_B3, factor)
        classical = measured(*evaluate(batch["planes"]), batch)
        columns |= {f"classical_{figure}": classical[figure] for figure in ("rank", "nll", "brier")}
        boards.add(batch, columns)
        if sample is not None:
            sample.add(batch, columns["game"])
        if searched is not None:
            searched.add(batch, (logits_BA, wdl_B3), shown["elo"], columns)
        tables.append(pl.DataFrame(columns))
        top1 = float((figures["rank"] == 1).mean())
        progress(Tick(done, rows, "positions", {"top1": top1}))
    if not labelled:
        raise ConfigError(
            f"none of the {done:,} positions has a known move to compare with: use a dataset of "
            "games, or of positions with moves"
        )
    if not tables:
        hint = ", or raise limit" if rule.limit else ""
        raise ConfigError(f"no position satisfies this rule: lower min_ply{hint}")
    table = pl.concat(tables).with_columns(
        pl.col("score", "brier", "wdl_brier", "classical_brier").fill_nan(None)
    )
    return table, boards


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
Columns = Mapping[str, NDArray[Any]]


def _sure_and_wrong(rows: Columns) -> NDArray[np.float64]:
    """Score missed moves by the probability of the network's first choice, others -1."""
    return np.where(rows["rank"] > 1, rows["choice_probability"], -1.0)


def _disagreement(rows: Columns) -> NDArray[np.float64]:
    """Score missed moves by their negative log-probability, others -1."""
    return np.where(rows["rank"] > 1, rows["nll"], -1.0)


def _quiet_finds(rows: Columns) -> NDArray[np.float64]:
    """Score predicted quiet moves by the network's lead in log-probability, others -1."""
    found = (rows["rank"] == 1) & rows["quiet"]
    return np.where(found, rows["classical_nll"] - rows["nll"], -1.0)


def _only_found(rows: Columns) -> NDArray[np.float64]:
    """Score moves that only the network predicts by the gain in log-probability, others -1."""
    found = (rows["rank"] == 1) & (rows["reference_rank"] > 1)
    return np.where(found, rows["reference_nll"] - rows["nll"], -1.0)


def _only_missed(rows: Columns) -> NDArray[np.float64]:
    """Score moves that only the reference predicts by its lead in log-probability, others -1."""
    missed = (rows["rank"] > 1) & (rows["reference_rank"] == 1)
    return np.where(missed, rows["nll"] - rows["reference_nll"], -1.0)


Sections = Mapping[str, tuple[str, Callable[[Columns], NDArray[np.float64]], bool]]
"""Sections of boards: title, score function (the highest scores are kept), and whether to select
boards separately for each rating band."""
SECTIONS: Sections = {
    "quiet_finds": ("A quiet move that it expected", _quiet_finds, False),
    "sure_and_wrong": ("It was sure of another move", _sure_and_wrong, False),
    "disagreement": ("A move that it hardly expected", _disagreement, True),
}
COMPARED_SECTIONS: Sections = {
    "found": ("Only {name} expected it", _only_found, False),
    "missed": ("Only {reference} expected it", _only_missed, False),
}
"""Sections of boards on which a network differs from a reference."""
CHOICE = ("rank", "nll", "choice", "choice_probability")
"""Columns of a network's table that boards need."""


class BoardSelection:
    """Collects the rows with the highest scores for each section, at most one per game."""

    def __init__(self, sections: Sections = SECTIONS) -> None:
        self.sections = sections
        self.kept: dict[str, dict[int, list[dict[str, Any]]]] = {name: {} for name in sections}

    def add(self, batch: Batch, columns: Columns) -> None:
        """Offer the rows of a batch to the selection; `columns` has their measured figures."""
        band_B = rating_band(batch["elo"], RATING_EDGES)
        for name, (_, score, by_band) in self.sections.items():
            score_B = score(columns)
            for band in np.unique(band_B).tolist() if by_band else [-1]:
                mine_B = score_B if band < 0 else np.where(band_B == band, score_B, -1.0)
                best = np.argsort(-mine_B, kind="stable")[: 2 * BOARDS]
                rows = [
                    board_row(batch, columns, at, float(mine_B[at]))
                    for at in best.tolist()
                    if mine_B[at] >= 0
                ]
                self.kept[name][band] = select_boards([*self.kept[name].get(band, []), *rows])

    def rows(self) -> dict[str, list[dict[str, Any]]]:
        """Return the boards of each section, evenly divided over rating bands, lowest first."""
        found: dict[str, list[dict[str, Any]]] = {}
        for name, bands in self.kept.items():
            known = {
                band: rows for band, rows in bands.items() if rows and band <= len(RATING_EDGES)
            }
            share = -(-BOARDS // max(1, len(known)))
            found[name] = []
            for band in sorted(known):
                # the same game may occur in two bands
                games = {row["game"] for row in found[name]}
                found[name] += [row for row in known[band] if row["game"] not in games][:share]
            del found[name][BOARDS:]
        return found


def compare_boards(
    batches: Iterator[Batch], rule: Rule, table: "pl.DataFrame", reference: "pl.DataFrame"
) -> dict[str, list[dict[str, Any]]]:
    """Return boards on which a network and a reference differ, by section.

    The tables are the measurements of the counted rows of `batches`, in the same order.
    """
    boards, begin = BoardSelection(COMPARED_SECTIONS), 0
    for batch in (select_counted(raw, rule) for raw in batches):
        rows = slice(begin, begin + len(batch["label"]))
        columns = {name: table[name][rows].to_numpy() for name in CHOICE}
        columns |= {f"reference_{name}": reference[name][rows].to_numpy() for name in CHOICE}
        boards.add(batch, columns)
        begin = rows.stop
    return boards.rows()


def select_boards(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the BOARDS rows with the highest scores, at most one per game and per position."""
    games, positions, found = set[int](), set[str](), list[dict[str, Any]]()
    for row in sorted(rows, key=lambda row: -row["score"]):
        if row["game"] not in games and row["fen"] not in positions and len(found) < BOARDS:
            games.add(row["game"])
            positions.add(row["fen"])
            found.append(row)
    return found


def board_row(batch: Batch, columns: Columns, at: int, score: float) -> dict[str, Any]:
    """Return a row as JSON: FEN, the played and chosen moves in UCI, ratings and time control.

    `reference` has another network's choice, if `columns` has one.
    """
    ply = int(batch["ply"][at])
    board = board_of(
        batch["planes"][at], int(batch["castling"][at]), int(batch["ep_file"][at]), ply
    )
    played = move_from_label(board, int(batch["label"][at]), int(batch["promotion"][at]))
    choice = _describe_choice(board, columns, at, "")
    if "reference_choice" in columns:
        choice["reference"] = _describe_choice(board, columns, at, "reference_")
    known = {
        name: int(batch[name][at]) for name in ("elo", "opponent_elo", "clock", "base", "increment")
    }
    return {
        "fen": board.fen(),
        "played": played.uci(),
        **choice,
        "game": int(batch["game"][at]),
        "ply": ply,
        **{
            name: None if value == BATCH_SENTINELS[name] else value for name, value in known.items()
        },
        "score": score,
    }


def _describe_choice(board: chess.Board, columns: Columns, at: int, prefix: str) -> dict[str, Any]:
    """Return a network's first choice in a row, and the rank of the move played."""
    return {
        "chosen": move_from_label(board, int(columns[f"{prefix}choice"][at])).uci(),
        "played_probability": float(np.exp(-columns[f"{prefix}nll"][at])),
        "chosen_probability": float(columns[f"{prefix}choice_probability"][at]),
        "rank": int(columns[f"{prefix}rank"][at]),
    }
