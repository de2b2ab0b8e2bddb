"""Expected scores of positions, and the risk of a blunder before a move.

Scores come from the game's evaluations, Stockfish or a network's search. All are White's, 0 to 1,
on one curve: win probability plus half the draw probability in human rapid games
(model.training.targets), which is also the networks' target. The risk comes from a policy of human
moves and a search.

Axes: A legal moves (the four promotions of a pawn count as one), F features.
"""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Literal, NamedTuple

import chess
import chess.engine
import chess.pgn
import numpy as np
from numpy.typing import NDArray

from engine.player import Play
from model.training.targets import EVAL_LIMIT, wdl_from_centipawns
from pipeline.errors import ConfigError
from pipeline.storage.preflight import find_engine, is_installed

Source = Literal["auto", "game", "stockfish", "search"]
"""Source of scores; auto takes the first of the others that is available."""
START_EVAL = 15
"""Evaluation of the start position in centipawns, as in Lichess's analysis."""
STOCKFISH_NODES = 100_000
"""Nodes that Stockfish searches for each position: a tenth of a second."""


def score_centipawns(centipawns: int) -> float:
    """Return the expected score for an evaluation in centipawns, from the same side's view."""
    win, draw, _ = wdl_from_centipawns(np.array([centipawns]))[0].tolist()
    return float(win + draw / 2)


@contextmanager
def open_stockfish() -> Iterator[chess.engine.SimpleEngine]:
    """Start Stockfish with one thread. Raises ConfigError if it is not installed."""
    if not is_installed("stockfish"):
        raise ConfigError("Stockfish was found neither on PATH nor in /usr/games: install it")
    with chess.engine.SimpleEngine.popen_uci([*find_engine(("stockfish",))]) as engine:
        engine.configure({"Threads": 1})
        yield engine


def score_if_over(board: chess.Board) -> float | None:
    """Return the score of a position if the game is over there by the rules, else None."""
    outcome = board.outcome()
    return None if outcome is None else 0.5 if outcome.winner is None else float(outcome.winner)


def _read_eval(node: chess.pgn.GameNode) -> chess.engine.PovScore | None:
    """Return the evaluation in a move's comment, or None if there is none or it is malformed."""
    try:
        return node.eval()
    except ValueError:
        return None


def has_scores(game: chess.pgn.Game) -> bool:
    """Return whether every move has an evaluation; one that ends the game needs none."""
    return all(
        _read_eval(node) is not None or score_if_over(node.board()) is not None
        for node in game.mainline()
    )


def score_in_game(node: chess.pgn.GameNode) -> float:
    """Return the score in a move's comment, or that of START_EVAL if there is no evaluation."""
    found = _read_eval(node)
    return score_centipawns(START_EVAL) if found is None else _score_evaluation(found)


def score_by_stockfish(
    engine: chess.engine.SimpleEngine, board: chess.Board
) -> tuple[float, chess.Move | None]:
    """Return White's score of a position by Stockfish, and its best move if there is one."""
    info = engine.analyse(board, chess.engine.Limit(nodes=STOCKFISH_NODES))
    return _score_evaluation(info["score"]), info.get("pv", [None])[0]


def score_value(value: float) -> float:
    """Return the expected score for a search's value (-1 to 1), bounded like evaluations."""
    return clip_score((1 + value) / 2)


def score_for_white(board: chess.Board, play: Play) -> float:
    """Return White's score by a search, or the result if the game is over or a mate is proven."""
    if (final := score_if_over(board)) is not None:
        return final
    first = play.moves[0]
    own = float(first.mate > 0) if first.mate else score_value(first.value)
    return own if board.turn else 1 - own


@cache
def _score_limit() -> float:
    return score_centipawns(EVAL_LIMIT)


def clip_score(score: float) -> float:
    """Clip a score to the range of evaluations without mate, in which blunders are measured."""
    return min(max(score, 1 - _score_limit()), _score_limit())


def measure_loss(before: float, after: float, color: chess.Color = chess.WHITE) -> float:
    """Return what a move of `color` loses, with a mate counted as ten pawns; a gain is negative.

    The scores are White's, before and after the move.
    """
    loss = clip_score(before) - clip_score(after)
    return loss if color else -loss


def _score_evaluation(found: chess.engine.PovScore) -> float:
    score = found.white()
    return (
        float(score > chess.engine.Cp(0))
        if score.is_mate()
        else score_centipawns(score.score() or 0)
    )


# ---------------------------------------------------------------- risk


BLUNDER = 0.1
"""A move that loses more expected score than this is a blunder."""
LOSS_ERROR_SCALE = 0.02
"""Logistic scale of the error in a search's loss; a loss equal to BLUNDER counts as half a
blunder."""
RISK_WEIGHTS = (-1.867, 0.578, 3.996, -0.517, 1.852, -0.831)
"""Weights of a logistic regression on `compute_features`, fitted to 23,731 moves of 1,188 games
(embedded network, 64 simulations)."""
BEND_RATING = 1500
"""Rating above which the risk of a blunder falls faster."""


class MoveLosses(NamedTuple):
    """Legal moves with their human policy and their losses by a search."""

    policy: NDArray[np.float64]  # [A] probability that it is played
    loss: NDArray[np.float64]  # [A] expected score lost by the search; nan without a visit
    best: float
    """Expected score of the best move."""


def promote_to_queen(move: chess.Move) -> chess.Move:
    """Return a move as policies name it: every promotion is a queen's."""
    queen = None if move.promotion is None else chess.QUEEN
    return chess.Move(move.from_square, move.to_square, queen)


def measure_move_losses(policy: Mapping[chess.Move, float], analysis: Play) -> MoveLosses:
    """Return each move's loss by a search; a promotion has the loss of its best piece."""
    best = score_value(analysis.moves[0].value)
    losses = dict.fromkeys(policy, math.nan)
    for found in analysis.moves:
        if found.visits or found.mate:
            move = promote_to_queen(found.move)
            loss = max(best - score_value(found.value), 0.0)
            losses[move] = float(np.fmin(losses[move], loss))
    return MoveLosses(np.array(list(policy.values())), np.array(list(losses.values())), best)


def average_loss(moves: MoveLosses) -> float:
    """Return the mean loss, weighted by the policy, of the moves that the search visited, or 0."""
    seen = ~np.isnan(moves.loss)
    weight = moves.policy[seen].sum()
    return float(moves.policy[seen] @ moves.loss[seen] / weight) if weight else 0.0


def compute_features(moves: MoveLosses, rating: int) -> NDArray[np.float64]:
    """Return the regression's inputs, float64[F].

    They are 1, the logit of the policy's share of blunders, its share of unvisited moves, the
    rating in thousands, how close the game is, and the rating above BEND_RATING.
    """
    seen = ~np.isnan(moves.loss)
    over = float(moves.policy[seen] @ _sigmoid((moves.loss[seen] - BLUNDER) / LOSS_ERROR_SCALE))
    unseen = float(moves.policy[~seen].sum())
    closeness = 4 * moves.best * (1 - moves.best)
    return np.array(
        [1.0, _logit(over), unseen, rating / 1000, closeness, max(rating - BEND_RATING, 0) / 1000]
    )


def predict_risk(moves: MoveLosses, rating: int) -> float:
    """Return the probability that a player of this rating blunders with the next move."""
    return float(_sigmoid(compute_features(moves, rating) @ np.array(RISK_WEIGHTS)))


def _sigmoid(x: NDArray[np.float64]) -> NDArray[np.float64]:
    return 1 / (1 + np.exp(-x))


def _logit(share: float) -> float:
    bounded = min(max(share, 1e-3), 1 - 1e-3)
    return math.log(bounded / (1 - bounded))
