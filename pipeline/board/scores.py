"""Expected scores of positions, from the game's evaluations, Stockfish or a network's search.

All are for White, 0 to 1, on one curve: the chance of a win and half of that of a draw for people
who play rapid games (model.training.targets), which networks learn too.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import chess
import chess.engine
import chess.pgn
import numpy as np

from model.training.targets import EVAL_LIMIT, wdl_from_centipawns
from pipeline.errors import ConfigError
from pipeline.storage.preflight import installed, is_installed

Source = Literal["auto", "game", "stockfish", "search"]
"""Source of scores; auto takes the first of the others that is available."""
START = 15
"""Centipawns of the start position, as Lichess's analysis has them."""
NODES = 100_000
"""Nodes that Stockfish searches for each position: a tenth of a second."""


def expected_score(centipawns: int) -> float:
    """Return the expected score of an evaluation, the same side's view."""
    win, draw, _ = wdl_from_centipawns(np.array([centipawns]))[0].tolist()
    return float(win + draw / 2)


@contextmanager
def open_stockfish() -> Iterator[chess.engine.SimpleEngine]:
    """Start Stockfish with one thread. Raises ConfigError where it is not installed."""
    if not is_installed("stockfish"):
        raise ConfigError(
            "Stockfish is not installed: its program is neither on PATH nor in /usr/games"
        )
    with chess.engine.SimpleEngine.popen_uci([*installed(("stockfish",))]) as engine:
        engine.configure({"Threads": 1})
        yield engine


def final_score(board: chess.Board) -> float | None:
    """Return the score of a position in which the game is over by the rules, or None."""
    outcome = board.outcome()
    return None if outcome is None else 0.5 if outcome.winner is None else float(outcome.winner)


def _read_eval(node: chess.pgn.GameNode) -> chess.engine.PovScore | None:
    """Return the evaluation in a move's comment, or None if there is none or it is malformed."""
    try:
        return node.eval()
    except ValueError:
        return None


def has_scores(game: chess.pgn.Game) -> bool:
    """Return whether a game has an evaluation after every move but a last one that ends it."""
    return all(
        _read_eval(node) is not None or final_score(node.board()) is not None
        for node in game.mainline()
    )


def score_in_game(node: chess.pgn.GameNode) -> float:
    """Return the score that a game's own comment gives after a move; at the start, of START."""
    found = _read_eval(node)
    return expected_score(START) if found is None else _score_of(found)


def score_by_stockfish(
    engine: chess.engine.SimpleEngine, board: chess.Board
) -> tuple[float, chess.Move | None]:
    """Return a position's score and Stockfish's best move."""
    info = engine.analyse(board, chess.engine.Limit(nodes=NODES))
    return _score_of(info["score"]), info.get("pv", [None])[0]


def score_of_value(value: float) -> float:
    """Return the expected score of a search's value (-1 to 1), bounded like evaluations."""
    return bound((1 + value) / 2)


def bound(score: float) -> float:
    """Clip a score to the range of evaluations without a mate, as blunders are measured."""
    most = expected_score(EVAL_LIMIT)
    return min(max(score, 1 - most), most)


def _score_of(found: chess.engine.PovScore) -> float:
    score = found.white()
    return (
        float(score > chess.engine.Cp(0)) if score.is_mate() else expected_score(score.score() or 0)
    )
