"""A checkpoint that chooses moves on python-chess boards.

    from model import load

    player = load("datasets/checkpoints/xs")
    player.choose(chess.Board(), rating=1800, simulations=64).move   # as people rated 1800 play
    player.policies(chess.Board(), [1000, 2000])                     # as people of both would play
    player.analyse(chess.Board(), 400).moves[0]                      # the best move by a search

Axes: A legal moves, R ratings.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf
from operator import index
from pathlib import Path
from typing import Any, get_args

import chess
import numpy as np
from numpy.typing import NDArray

from engine.errors import UserError
from engine.player import Conditions, Play, Request, Style
from engine.player import Player as EnginePlayer
from engine.player.boards import check_board, parse_playable
from engine.search import SearchConfig
from engine.search.human import Aim
from model.inference.columns import check_conditions
from model.inference.evaluator import NetworkEvaluator, evaluator
from model.inference.onnx_evaluator import OnnxEvaluator, find_export

MOST_SIMULATIONS = 1_000_000
"""Simulations of one call at most: their tree is allocated at once."""
COLUMNS = {"rating": "elo", "opponent_rating": "opponent_elo", "clock": "clock"}
"""Columns of the conditions that `choose` takes."""


class GameOverError(UserError):
    """The position has no legal move."""


@dataclass(frozen=True, slots=True)
class Choice:
    """A chosen move, and the network's policy and value."""

    move: chess.Move
    """The chosen move; a promotion is to a queen, since labels do not name the piece."""
    probabilities: dict[chess.Move, float]
    """The policy over legal moves, likeliest first; under-promotions are part of the queen's."""
    value: float
    """Win minus loss for the side to move by the network alone, -1 to 1."""
    wdl: tuple[float, float, float]
    """Probabilities of win, draw, loss for the side to move, by the network alone."""
    simulations: int = 0
    """Simulations of the search that corrected the policy; 0 without a search, or where the card
    holds no correction (`fianchetto calibrate` fits one)."""


class Player:
    """A network that plays on boards."""

    def __init__(self, network: NetworkEvaluator, exported: OnnxEvaluator | None = None) -> None:
        """Take policies from `network`; searches use its export, which is faster."""
        self.evaluator = network
        self._searched = exported or network

    def choose(
        self,
        board: chess.Board | str,
        temperature: float = 1.0,
        *,
        rating: int | None = None,
        opponent_rating: int | None = None,
        clock: int | None = None,
        simulations: int = 0,
        aim: Aim = "likelihood",
        random: np.random.Generator | None = None,
    ) -> Choice:
        """Choose a move by the policy at a temperature: 1 samples by its probabilities, 0 takes the
        likeliest.

        `board` is a python-chess board, a FEN, or "startpos". Its move stack is used where the
        network reads the last moves. Ratings, and the mover's clock in seconds, are for networks
        that read them (ConditionError for others). None is unknown; without `opponent_rating` the
        opponent has the same rating. With `simulations` the policy is corrected by a search
        (engine/search/human.py): `aim` is "likelihood" for the moves that people of the rating
        play, "strength" for moves that are as good as theirs. Raises GameOverError, FenError for a
        position that UCI refuses too, and UserError for a value of a wrong type.
        """
        board, temperature = _read_board(board), _read_temperature(temperature)
        simulations = _read_whole("simulations", simulations, 0, MOST_SIMULATIONS)
        if aim not in get_args(Aim):
            raise UserError(f"aim must be one of {', '.join(get_args(Aim))}, not {aim!r}")
        conditions = self._conditions(rating=rating, opponent_rating=opponent_rating, clock=clock)
        correction = self._searched.corrections.get(aim) if simulations else None
        style = Style(correction=correction, simulations=simulations, temperature=temperature)
        if not isinstance(random, np.random.Generator | None):
            raise UserError(f"random must be a numpy.random.Generator, not {random!r}")
        random = random or np.random.default_rng()
        play = self._play(style, [Request(board=board, conditions=conditions, random=random)])[0]
        likely = sorted(play.moves, key=lambda line: -line.share)
        shares = {line.move: line.share for line in likely}
        return Choice(play.move, shares, play.value, play.wdl, play.simulations)

    def policies(
        self, board: chess.Board | str, ratings: Sequence[int]
    ) -> tuple[list[chess.Move], NDArray[np.float64]]:
        """Return the legal moves, and their probabilities float64[R, A] at each of these ratings.

        Both players have the rating, and all ratings are one batch. A promotion is to a queen, as
        in `choose`. Raises GameOverError, and ConditionError for a network that reads no ratings.
        """
        board = _read_board(board)
        moves = [move for move in board.legal_moves if move.promotion in (None, chess.QUEEN)]
        if isinstance(ratings, str) or not isinstance(ratings, Iterable):
            raise UserError(f"ratings must be a list of whole numbers, not {ratings!r}")
        conditions = [self._conditions(rating=rating) for rating in ratings]
        if not conditions:
            return moves, np.empty((0, len(moves)))
        plays = self._play(Style(), [Request(board=board, conditions=one) for one in conditions])
        shares = [{line.move: line.share for line in play.moves} for play in plays]
        return moves, np.array([[found[move] for move in moves] for found in shares])

    def analyse(self, board: chess.Board | str, simulations: int, *, lines: int = 3) -> Play:
        """Search a position for its best moves, the first `lines` of them with variations.

        The search is not conditioned on ratings. The board's move stack is used for repetitions and
        for the last moves that the network reads. Raises GameOverError.
        """
        board, lines = _read_board(board), _read_whole("lines", lines, 0, MOST_SIMULATIONS)
        simulations = _read_whole("simulations", simulations, 1, MOST_SIMULATIONS)
        style = Style(search=SearchConfig(simulations=simulations), evaluates_root=True)
        return self._play(style, [Request(board=board, lines=lines)])[0]

    def _play(self, style: Style, requests: Sequence[Request]) -> list[Play]:
        """Play a move for each request with a new engine player, whose trees end with it."""
        player = EnginePlayer(self.evaluator, style, searched=self._searched)
        return player.play_all(requests)

    def _conditions(self, **given: Any) -> Conditions:
        """Return conditions that the network reads, or raise ConditionError."""
        numbers = {name: _read_whole(name, one) for name, one in given.items() if one is not None}
        known = {COLUMNS[name]: number for name, number in numbers.items()}
        check_conditions(f"the network {self.evaluator.preset.name}", self.evaluator.columns, known)
        return Conditions(**numbers)


def _read_board(board: chess.Board | str) -> chess.Board:
    """Return a board that can be played and has legal moves; "startpos" or a FEN makes one.

    Raises FenError, UserError for another type, and GameOverError.
    """
    if not isinstance(board, chess.Board | str):
        kind = type(board).__name__
        raise UserError(f"board must be a chess.Board, a FEN or 'startpos', not {kind}")
    if isinstance(board, chess.Board):
        board = check_board(board)
    else:
        board = parse_playable(chess.STARTING_FEN if board == "startpos" else board)
    if not any(board.legal_moves):
        raise GameOverError(f"there is no legal move in {board.fen()}")
    return board


def _read_whole(name: str, value: Any, least: float = -inf, most: float = inf) -> int:
    """Return a whole number, which may be NumPy's, of these bounds."""
    try:
        number = None if isinstance(value, bool) else index(value)
    except TypeError:
        number = None
    if number is None:
        raise UserError(f"{name} must be a whole number, not {value!r}")
    if not least <= number <= most:
        raise UserError(f"{name} is {number}, and must be from {least} to {most}")
    return number


def _read_temperature(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | np.number):
        raise UserError(f"temperature must be a number, not {value!r}")
    if not 0 <= value < inf:
        raise UserError(f"temperature is {value}, and must be finite and 0 or more")
    return float(value)


def load(directory: str | Path, *, device: str = "auto", amp: str = "auto") -> Player:
    """Load a checkpoint as a player; raises CheckpointError and OnnxError."""
    network = evaluator(Path(directory), device=device, amp=amp)
    return Player(network, find_export(Path(directory)) if network.device.type == "cpu" else None)
