"""What drawn moves lose under each told rating, beside what people's moves lost on the same positions, by an engine's opinion.

Every legal move is judged, so the mean loss of a move drawn at temperature 1 is a sum over the whole policy: nothing is drawn.

score       expected score lost against the best move, 0..1, by Lichess's curve; a forced mate is worth 1
centipawns  the same in centipawns, scores cut off at +-1000 and mates counted as that, as in Lichess's average centipawn loss
inaccuracy, mistake, blunder
            share of moves that lose at least 0.1, 0.2, 0.3 of the winning chances (2 * score - 1), as Lichess advises
            (lichess-org/lila, modules/tree/src/main/Advice.scala); its own rules for mates are left out

Axes: R rows of the sample, M legal moves of all rows, T what the network is told (CONDITIONS).
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
from pipeline.evaluation.figures import clustered_mean
from pipeline.evaluation.judgements import CURVE, Judged, judged_fens, judging
from pipeline.evaluation.page.boards import board_of, move_on
from pipeline.evaluation.ratings.config import RatingsConfig
from pipeline.evaluation.ratings.sample import CONDITIONS, NAMES, TOLD, UNKNOWN, BandSample, answers
from pipeline.executors.local import available_cores

if TYPE_CHECKING:
    from model.inference.evaluator import NetworkEvaluator

CEILING = 1000.0
"""Centipawns at which scores are cut off: lichess-org/scalachess, Eval.Cp.CEILING."""
ADVICE = {"inaccuracy": 0.1, "mistake": 0.2, "blunder": 0.3}
TERMS = ("score", "centipawns", *ADVICE)
TEMPERATURES = (0.02, 4.0)
"""The coldest, at which the first choice is played, and the hottest."""


def told_losses(
    network: "NetworkEvaluator", sample: BandSample, config: RatingsConfig, folder: Path, progress: Progress
) -> dict[str, Any]:
    """Return the losses by band of the mover; the engine's judgements are kept in `folder`.

    Each of `rows` is a band: `positions games told`, and of each of TERMS `people_TERM`, `network_TERM` (told the band's
    rating), `first_TERM` (its first choice), `untold_TERM` (told nothing) and the paired `difference_TERM` of network less
    people, with the ends of their intervals by games (`*_low *_high`). `score_by_told` is what the network loses under each
    of TOLD on the band's positions, and at `matched_temperature` it loses as much as people. `by_told` has a row for each
    told rating, of all positions, bands weighted equally. Raises JudgeError.
    """
    batch, band_R = sample.take(config.judged)
    boards = boards_of(batch)
    fens = list(dict.fromkeys(board.fen() for board in boards))
    command, workers = judging(config.engine), config.workers or available_cores()
    found = judged_fens(fens, folder, command=command, depth=config.depth, workers=workers, progress=progress)
    return losses(network, batch, band_R, boards, {one.fen: one for one in found})


def boards_of(batch: Batch) -> list[chess.Board]:
    """Return the boards of rows."""
    columns = (batch[name].tolist() for name in ("castling", "ep_file", "ply"))
    return [board_of(planes_P, *state) for planes_P, *state in zip(batch["planes"], *columns, strict=True)]


def losses(
    network: "NetworkEvaluator",
    batch: Batch,
    band_R: NDArray[np.int64],
    boards: Sequence[chess.Board],
    judged: Mapping[str, Judged],
) -> dict[str, Any]:
    """Return `told_losses` of judged rows."""
    legal = _legal(batch, boards, judged)
    drawn = {term: np.zeros((len(CONDITIONS), len(boards))) for term in TERMS}
    own_M = np.zeros(len(legal.row))
    for number, part, _, logits_BA, _ in answers(network, batch):
        mine = slice(*np.searchsorted(legal.row, (part.start, part.stop)))
        logits_M = logits_BA[legal.row[mine] - part.start, legal.label[mine]].astype(np.float64)
        first_B = legal.first[part] - mine.start
        own_M[mine] = np.where(band_R[legal.row[mine]] == number, logits_M, own_M[mine])
        for term, terms_R in _mean(_policy(logits_M, first_B), legal.lost, first_B, mine).items():
            drawn[term][number, part] = terms_R
    found = _Measured(legal, band_R, batch["game_id"], own_M, drawn)
    weights_R = 1 / np.bincount(band_R)[band_R]
    by_told = [
        {"told": told, **{term: float(np.average(drawn[term][at], weights=weights_R)) for term in TERMS}}
        for at, told in enumerate(TOLD)
    ]
    rows = [_row(found, band, temperature) for band, temperature in _matched(found).items()]
    return {"told": list(TOLD), "rows": rows, "by_told": by_told}


class _Legal(NamedTuple):
    """The legal moves of judged rows."""

    row: NDArray[np.int64]  # [M]
    label: NDArray[np.int64]  # [M]
    first: NDArray[np.int64]
    """Where the moves of a row begin, [R]."""
    lost: dict[str, NDArray[np.float64]]
    """What each loses, by TERMS, [M]; a pawn becomes a queen."""
    people: dict[str, NDArray[np.float64]]
    """What the moves that people played lost, [R]."""


class _Measured(NamedTuple):
    """What moves lose, row by row."""

    legal: _Legal
    band: NDArray[np.int64]  # [R]
    game: NDArray[np.uint64]  # [R]
    own: NDArray[np.float64]
    """Logits of the network that is told the rating of the row's band, [M]."""
    drawn: dict[str, NDArray[np.float64]]
    """Mean loss of drawn moves by TERMS [T, R]."""


def _legal(batch: Batch, boards: Sequence[chess.Board], judged: Mapping[str, Judged]) -> _Legal:
    """Return the legal moves of rows and what they lose."""
    row_M, label_M = np.nonzero(legal_mask(batch["planes"]))
    scores = [judged[board.fen()].scores for board in boards]
    best_R = np.array([max(moves.values()) for moves in scores])
    moves_M = zip(row_M.tolist(), label_M.tolist(), strict=True)
    score_M = np.array([scores[row][move_on(boards[row], label).uci()] for row, label in moves_M])
    played = zip(boards, scores, batch["label"].tolist(), batch["promotion"].tolist(), strict=True)
    played_R = np.array([moves[move_on(board, label, piece).uci()] for board, moves, label, piece in played])
    first_R = np.searchsorted(row_M, np.arange(len(boards)))
    return _Legal(row_M, label_M, first_R, lost(best_R[row_M], score_M), lost(best_R, played_R))


def lost(best: NDArray[np.float64], score: NDArray[np.float64]) -> dict[str, NDArray[np.float64]]:
    """Return what moves lose, by TERMS, from the expected scores of the best move and of the move."""
    chances = 2 * (best - score)
    terms = {"score": best - score, "centipawns": _centipawns(best) - _centipawns(score)}
    # scores are kept to five places
    return terms | {name: (chances >= least - 1e-6).astype(float) for name, least in ADVICE.items()}


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


def _mean(
    policy_M: NDArray[np.float64],
    lost_M: Mapping[str, NDArray[np.float64]],
    first_R: NDArray[np.int64],
    moves: slice = slice(None),
) -> dict[str, NDArray[np.float64]]:
    """Return the mean loss of each row's moves, drawn from a policy of these `moves`."""
    return {term: np.add.reduceat(policy_M * values_M[moves], first_R) for term, values_M in lost_M.items()}


def _at(found: _Measured, temperature_R: NDArray[np.float64]) -> dict[str, NDArray[np.float64]]:
    """Return the mean losses of moves drawn at temperatures under the rating of each row's band."""
    legal = found.legal
    policy_M = _policy(found.own / temperature_R[legal.row], legal.first)
    return _mean(policy_M, legal.lost, legal.first)


def _matched(found: _Measured) -> dict[int, float | None]:
    """Return for each band the temperature at which drawn moves lose as much as people's; None where none does.

    By bisection: the hotter, the more is lost. Where people lose less than the first choice does, no temperature helps.
    """
    bands = np.unique(found.band)
    place_R = np.searchsorted(bands, found.band)
    rows_N = np.bincount(place_R)

    def by_band(loss_R: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.bincount(place_R, weights=loss_R) / rows_N

    people_N = by_band(found.legal.people["score"])
    low_N, high_N = (np.full(len(bands), end) for end in TEMPERATURES)
    ends = [by_band(_at(found, end_N[place_R])["score"]) for end_N in (low_N, high_N)]
    for _ in range(20):
        middle_N = (low_N + high_N) / 2
        more_N = by_band(_at(found, middle_N[place_R])["score"]) < people_N
        low_N, high_N = np.where(more_N, middle_N, low_N), np.where(more_N, high_N, middle_N)
    within_N = (ends[0] <= people_N) & (people_N <= ends[1])
    return {int(band): float(low) if within else None for band, low, within in zip(bands, low_N, within_N, strict=True)}


def _row(found: _Measured, band: int, temperature: float | None) -> dict[str, Any]:
    """Return the figures of one band."""
    mine_R = found.band == band
    games = found.game[mine_R]
    row: dict[str, Any] = {"band": NAMES[band], "told": TOLD[band]}
    row |= {"positions": len(games), "games": len(np.unique(games))}
    first = _at(found, np.full(len(mine_R), TEMPERATURES[0]))
    for term, drawn_TR in found.drawn.items():
        values = {"people": found.legal.people[term], "network": drawn_TR[band], "first": first[term]}
        values |= {"untold": drawn_TR[CONDITIONS.index(UNKNOWN)]}
        values |= {"difference": values["network"] - values["people"]}
        for name, values_R in values.items():
            mean, low, high = clustered_mean(values_R[mine_R], games)
            if low is not None and name != "difference":
                low = max(low, 0.0)
            row |= {f"{name}_{term}": mean, f"{name}_{term}_low": low, f"{name}_{term}_high": high}
    row["score_by_told"] = found.drawn["score"][: len(TOLD), mine_R].mean(axis=1).tolist()
    row["matched_temperature"] = temperature
    return row


def losses_table(found: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the losses as a table of plain columns."""
    shown = [f"{name}_score" for name in ("people", "network", "first", "untold")]
    shown += [f"{name}_{term}" for term in ("centipawns", "blunder") for name in ("people", "network")]
    ends = [*(f"difference_score{end}" for end in ("", "_low", "_high")), "matched_temperature"]
    return [
        {name: row[name] for name in ("band", "positions", "games", "told", *shown, *ends)} for row in found["rows"]
    ]


def losses_sentence(found: Mapping[str, Any], config: RatingsConfig) -> str:
    """Return how many positions were judged, and the mean losses over the bands."""
    rows = found["rows"]
    people, network, untold = (
        float(np.mean([row[f"{name}_score"] for row in rows])) for name in ("people", "network", "untold")
    )
    positions = sum(row["positions"] for row in rows)
    return (
        f"{positions:,} positions of {len(rows)} bands, judged by {config.engine} at depth {config.depth}: people's moves "
        f"lose {people:.4f} of expected score, moves drawn under their rating {network:.4f}, under none {untold:.4f} "
        "(means of the bands)"
    )
