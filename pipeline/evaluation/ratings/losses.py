"""What moves drawn from a rating-conditioned policy lose, beside what people's moves lost in the same positions.

A UCI engine evaluates every legal move, so the mean loss of a move drawn at temperature 1 is an exact sum over the policy.

score       expected score lost against the best move, 0..1, by Lichess's curve; a forced mate is worth 1
centipawns  the same in centipawns, cut off at +-1000, mates included, as in Lichess's average centipawn loss
blunder     share of moves that lose at least 0.3 of the winning chances (2 * score - 1), as Lichess defines it
            (lichess-org/lila, modules/tree/src/main/Advice.scala) without its special rules for mates

Axes: R rows of the sample, M legal moves of all rows, T conditions (CONDITIONS).
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import chess
import numpy as np
from numpy.typing import NDArray

from engine.encoding.planes import legal_mask
from engine.progress import Progress
from pipeline.dataset.files.shards import Batch
from pipeline.evaluation.intervals import clustered_mean
from pipeline.evaluation.judgements import CURVE, Judged, judged_fens, judging
from pipeline.evaluation.page.boards import board_of, move_on
from pipeline.evaluation.ratings.config import RatingsConfig
from pipeline.evaluation.ratings.sample import CENTERS, CONDITIONS, NAMES, UNKNOWN, BandSample, evaluate_conditions
from pipeline.executors.local import available_cores

if TYPE_CHECKING:
    from model.inference.evaluator import NetworkEvaluator

CEILING = 1000.0
"""Centipawns at which scores are cut off: lichess-org/scalachess, Eval.Cp.CEILING."""
BLUNDER = 0.3
TERMS = ("score", "centipawns", "blunder")


def measure_losses(
    network: "NetworkEvaluator", sample: BandSample, config: RatingsConfig, folder: Path, progress: Progress
) -> dict[str, Any]:
    """Return the losses by band of the mover; the engine's evaluations are kept in `folder`.

    Each of `rows` is a band: `positions games rating`, and for each of TERMS `people_TERM`, `network_TERM` (conditioned on the
    band's rating), `first_TERM` (its first choice), `unconditioned_TERM` and the paired `difference_TERM` of network less
    people, with the ends of their intervals by games (`*_low *_high`). `score_by_rating` is what the network loses under each
    of CENTERS in the band's positions. Raises JudgeError.
    """
    batch, band_R = sample.take(config.judged)
    boards = boards_of(batch)
    fens = list(dict.fromkeys(board.fen() for board in boards))
    command, workers = judging(config.engine), config.workers or available_cores()
    found = judged_fens(fens, folder, command=command, depth=config.depth, workers=workers, progress=progress)
    return losses_of_rows(network, batch, band_R, boards, {one.fen: one for one in found})


def boards_of(batch: Batch) -> list[chess.Board]:
    """Return the boards of rows."""
    columns = (batch[name].tolist() for name in ("castling", "ep_file", "ply"))
    return [board_of(planes_P, *state) for planes_P, *state in zip(batch["planes"], *columns, strict=True)]


def losses_of_rows(
    network: "NetworkEvaluator",
    batch: Batch,
    band_R: NDArray[np.int64],
    boards: Sequence[chess.Board],
    judged: Mapping[str, Judged],
) -> dict[str, Any]:
    """Return `measure_losses` of rows whose moves have been evaluated."""
    legal = _legal_losses(batch, boards, judged)
    drawn = {term: np.zeros((len(CONDITIONS), len(boards))) for term in TERMS}
    first = {term: np.zeros(len(boards)) for term in TERMS}
    for number, part, _, logits_BA, _ in evaluate_conditions(network, batch):
        mine = slice(*np.searchsorted(legal.row, (part.start, part.stop)))
        logits_M = logits_BA[legal.row[mine] - part.start, legal.label[mine]].astype(np.float64)
        first_B = legal.first[part] - mine.start
        policy_M = _policy(logits_M, first_B)
        own_B = band_R[part] == number
        highest_B = np.repeat(np.maximum.reduceat(policy_M, first_B), np.diff(first_B, append=len(policy_M)))
        chosen_M = (policy_M == highest_B).astype(float)
        for term in TERMS:
            lost_M = legal.lost[term][mine]
            drawn[term][number, part] = np.add.reduceat(policy_M * lost_M, first_B)
            choice_B = np.add.reduceat(chosen_M * lost_M, first_B) / np.add.reduceat(chosen_M, first_B)
            first[term][part] = np.where(own_B, choice_B, first[term][part])
    bands = np.unique(band_R).tolist()
    rows = [_row(band, band_R == band, batch["game_id"], legal.people, drawn, first) for band in bands]
    return {"ratings": list(CENTERS), "rows": rows}


class _Legal(NamedTuple):
    """The legal moves of evaluated rows."""

    row: NDArray[np.int64]  # [M]
    label: NDArray[np.int64]  # [M]
    first: NDArray[np.int64]
    """Where the moves of a row begin, [R]."""
    lost: dict[str, NDArray[np.float64]]
    """What each loses, by TERMS, [M]; a pawn becomes a queen."""
    people: dict[str, NDArray[np.float64]]
    """What the moves that people played lost, by TERMS, [R]."""


def _legal_losses(batch: Batch, boards: Sequence[chess.Board], judged: Mapping[str, Judged]) -> _Legal:
    """Return the legal moves of rows and what they lose."""
    row_M, label_M = np.nonzero(legal_mask(batch["planes"]))
    scores = [judged[board.fen()].scores for board in boards]
    best_R = np.array([max(moves.values()) for moves in scores])
    moves_M = zip(row_M.tolist(), label_M.tolist(), strict=True)
    score_M = np.array([scores[row][move_on(boards[row], label).uci()] for row, label in moves_M])
    played = zip(boards, scores, batch["label"].tolist(), batch["promotion"].tolist(), strict=True)
    played_R = np.array([moves[move_on(board, label, piece).uci()] for board, moves, label, piece in played])
    first_R = np.searchsorted(row_M, np.arange(len(boards)))
    return _Legal(row_M, label_M, first_R, lost_terms(best_R[row_M], score_M), lost_terms(best_R, played_R))


def lost_terms(best: NDArray[np.float64], score: NDArray[np.float64]) -> dict[str, NDArray[np.float64]]:
    """Return what moves lose, by TERMS, from the expected scores of the best move and of the move."""
    blunder = 2 * (best - score) >= BLUNDER - 1e-6  # scores are kept to five places
    centipawns = _centipawns(best) - _centipawns(score)
    return {"score": best - score, "centipawns": centipawns, "blunder": blunder.astype(float)}


def _centipawns(score: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return expected scores as centipawns by Lichess's curve, at most CEILING either way."""
    with np.errstate(divide="ignore"):
        return np.clip(np.log(score / (1 - score)) / CURVE, -CEILING, CEILING)


def _policy(logits_M: NDArray[np.float64], first_R: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the probabilities of the legal moves of each row; `first_R` is where a row's moves begin."""
    counts_R = np.diff(first_R, append=len(logits_M))
    weights_M = np.exp(logits_M - np.repeat(np.maximum.reduceat(logits_M, first_R), counts_R))
    policy_M: NDArray[np.float64] = weights_M / np.repeat(np.add.reduceat(weights_M, first_R), counts_R)
    return policy_M


def _row(
    band: int,
    mine_R: NDArray[np.bool_],
    game_R: NDArray[np.uint64],
    people: Mapping[str, NDArray[np.float64]],
    drawn: Mapping[str, NDArray[np.float64]],
    first: Mapping[str, NDArray[np.float64]],
) -> dict[str, Any]:
    """Return the figures of one band."""
    games = game_R[mine_R]
    row: dict[str, Any] = {"band": NAMES[band], "rating": CENTERS[band]}
    row |= {"positions": len(games), "games": len(np.unique(games))}
    for term in TERMS:
        values = {"people": people[term], "network": drawn[term][band], "first": first[term]}
        values |= {"unconditioned": drawn[term][CONDITIONS.index(UNKNOWN)]}
        values |= {"difference": values["network"] - values["people"]}
        for name, values_R in values.items():
            mean, low, high = clustered_mean(values_R[mine_R], games)
            if low is not None and name != "difference":
                low = max(low, 0.0)
            row |= {f"{name}_{term}": mean, f"{name}_{term}_low": low, f"{name}_{term}_high": high}
    row["score_by_rating"] = drawn["score"][: len(CENTERS), mine_R].mean(axis=1).tolist()
    return row


def describe_losses(found: Mapping[str, Any], config: RatingsConfig) -> str:
    """Return how many positions were evaluated, and the mean losses over the bands."""
    rows = found["rows"]
    people, network = (float(np.mean([row[f"{name}_score"] for row in rows])) for name in ("people", "network"))
    positions = sum(row["positions"] for row in rows)
    return (
        f"{positions:,} positions of {len(rows)} bands, evaluated by {config.engine} at depth {config.depth}: people's moves "
        f"lose {people:.4f} of expected score, moves drawn at the band's rating {network:.4f} (means of the bands)"
    )
