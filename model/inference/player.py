"""Choose moves on python-chess boards with a checkpoint.

    from model import load

    player = load("datasets/checkpoints/xs")
    player.choose(chess.Board(), rating=1800, simulations=64).move   # a move of an 1800 player
    player.policies(chess.Board(), [1000, 2000])                     # move probabilities by rating
    player.analyse(chess.Board(), 400).moves[0]                      # the best move by search

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
from engine.player.policy import parse_time_control
from engine.search import SearchConfig
from engine.search.human import Aim
from model.inference.evaluator import NetworkEvaluator, evaluator
from model.inference.onnx_evaluator import OnnxEvaluator, find_export

MAX_SIMULATIONS = 1_000_000
"""Maximum number of simulations per call, since memory for the whole tree is allocated first."""
MAX_CONDITION = 65_535
"""Maximum rating, and clock in seconds: the columns are uint16."""
CONDITION_COLUMNS = {"rating": "elo", "opponent_rating": "opponent_elo"}
"""Column of each condition; a condition that is not listed has the name of its column."""


class ConditionError(UserError):
    """The network does not read the column that a condition sets."""


class GameOverError(UserError):
    """The position has no legal move."""


@dataclass(frozen=True, slots=True)
class Choice:
    """A chosen move, and the network's policy and value."""

    move: chess.Move
    """The chosen move. Promotions are to a queen, since labels do not include the piece."""
    probabilities: dict[chess.Move, float]
    """Policy over legal moves, most likely first. Queen promotions include under-promotions."""
    value: float
    """Win minus loss for the side to move, -1 to 1, from the network without search."""
    wdl: tuple[float, float, float]
    """Win, draw and loss probabilities for the side to move, from the network without search."""
    simulations: int = 0
    """Simulations of the search that corrected the policy. It is 0 without a search, and without a
    correction in the card (`fianchetto calibrate` fits one)."""


class Player:
    """A network that plays on boards."""

    def __init__(self, network: NetworkEvaluator, exported: OnnxEvaluator | None = None) -> None:
        """Use `network` for policies, and for searches `exported` if given, which is faster."""
        self.evaluator = network
        self._search_evaluator = exported or network

    def choose(
        self,
        board: chess.Board | str,
        temperature: float = 1.0,
        *,
        rating: int | None = None,
        opponent_rating: int | None = None,
        clock: int | None = None,
        time_control: str | None = None,
        simulations: int = 0,
        aim: Aim = "likelihood",
        random: np.random.Generator | None = None,
    ) -> Choice:
        """Choose a move from the policy. Temperature 1 samples from it; 0 takes the likeliest move.

        `board` is a python-chess board, a FEN, or "startpos". Networks that read the last moves
        take them from its move stack. Ratings, the clock of the side to move in seconds, and the
        time control ("180+2" in seconds, or "bullet", "blitz", "rapid", "classical") need a network
        that reads them, and raise ConditionError otherwise. None means unknown; `opponent_rating`
        defaults to `rating`. An imitation plays the openings that its player always plays, at any
        temperature. With `simulations`, a search corrects the policy (engine/search/human.py). The
        aim "likelihood" predicts the moves of human players of that rating; "strength" matches
        their playing strength. Raises GameOverError, FenError for positions that cannot be played,
        and UserError for values of the wrong type.
        """
        board, temperature = _check_board(board), _check_temperature(temperature)
        simulations = _check_integer("simulations", simulations, 0, MAX_SIMULATIONS)
        if aim not in get_args(Aim):
            raise UserError(f"aim must be one of {', '.join(get_args(Aim))}, not {aim!r}")
        conditions = self._conditions(
            time_control, rating=rating, opponent_rating=opponent_rating, clock=clock
        )
        correction = self._search_evaluator.corrections.get(aim) if simulations else None
        style = Style(
            correction=correction,
            simulations=simulations,
            temperature=temperature,
            book=self.evaluator.book,
        )
        if not isinstance(random, np.random.Generator | None):
            raise UserError(f"random must be a numpy.random.Generator, not {random!r}")
        random = random or np.random.default_rng()
        play = self._play(style, [Request(board=board, conditions=conditions, random=random)])[0]
        lines = sorted(play.moves, key=lambda line: -line.share)
        probabilities = {line.move: line.share for line in lines}
        return Choice(play.move, probabilities, play.value, play.wdl, play.simulations)

    def policies(
        self, board: chess.Board | str, ratings: Sequence[int], *, time_control: str | None = None
    ) -> tuple[list[chess.Move], NDArray[np.float64]]:
        """Return the legal moves and their probabilities at each rating, float64 `[R, A]`.

        Both players get the same rating. All ratings are evaluated as one batch. Promotions are to
        a queen, as in `choose`. Raises ConditionError if the network does not read ratings, and
        otherwise the errors of `choose`.
        """
        board = _check_board(board)
        moves = [move for move in board.legal_moves if move.promotion in (None, chess.QUEEN)]
        if isinstance(ratings, str) or not isinstance(ratings, Iterable):
            raise UserError(f"ratings must be a list of whole numbers, not {ratings!r}")
        requests = [
            Request(board=board, conditions=self._conditions(time_control, rating=rating))
            for rating in ratings
        ]
        if not requests:
            return moves, np.empty((0, len(moves)))
        plays = self._play(Style(), requests)
        policies = [{line.move: line.share for line in play.moves} for play in plays]
        return moves, np.array([[policy[move] for move in moves] for policy in policies])

    def analyse(self, board: chess.Board | str, simulations: int, *, lines: int = 3) -> Play:
        """Search for the best moves; the first `lines` of them come with variations.

        The search is not conditioned on ratings. The board's move stack provides repetitions and
        the last moves. Raises GameOverError, FenError and UserError, as `choose` does.
        """
        board, lines = _check_board(board), _check_integer("lines", lines, 0, MAX_SIMULATIONS)
        simulations = _check_integer("simulations", simulations, 1, MAX_SIMULATIONS)
        style = Style(search=SearchConfig(simulations=simulations), evaluates_root=True)
        return self._play(style, [Request(board=board, lines=lines)])[0]

    def _play(self, style: Style, requests: Sequence[Request]) -> list[Play]:
        """Play a move for each request with a new engine player, so that no trees are reused."""
        player = EnginePlayer(self.evaluator, style, searched=self._search_evaluator)
        return player.play_all(requests)

    def _conditions(self, time_control: str | None, **given: Any) -> Conditions:
        if time_control is not None:
            given["base"], given["increment"] = parse_time_control(time_control)
        numbers = {
            name: _check_integer(name, value, 0, MAX_CONDITION)
            for name, value in given.items()
            if value is not None
        }
        columns = self.evaluator.columns
        for name in (CONDITION_COLUMNS.get(name, name) for name in numbers):
            if name not in columns:
                raise ConditionError(
                    f"the network {self.evaluator.preset.name} has no input {name!r}: its inputs "
                    f"are {', '.join(columns) or 'the planes only'}"
                )
        return Conditions(**numbers)


def _check_board(board: chess.Board | str) -> chess.Board:
    """Return a playable board with at least one legal move, from a board, FEN or "startpos".

    Raises FenError, GameOverError, and UserError for another type.
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


def _check_integer(name: str, value: Any, minimum: int, maximum: int) -> int:
    """Return an integer of any type as an int; raise UserError for other or too large values."""
    try:
        number = None if isinstance(value, bool) else index(value)
    except TypeError:
        number = None
    if number is None:
        raise UserError(f"{name} must be a whole number, not {value!r}")
    if not minimum <= number <= maximum:
        raise UserError(f"{name} is {number}, but must be from {minimum} to {maximum}")
    return number


def _check_temperature(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | np.number):
        raise UserError(f"temperature must be a number, not {value!r}")
    if not 0 <= value < inf:
        raise UserError(f"temperature is {value}, but must be finite and at least 0")
    return float(value)


def load(
    directory: str | Path, *, device: str = "auto", amp: str = "auto", threads: int = 1
) -> Player:
    """Load a checkpoint as a player.

    On a CPU, searches use the checkpoint's exported network if there is one, on `threads` threads.
    Raises CheckpointError, OnnxError and DeviceError.
    """
    network = evaluator(Path(directory), device=device, amp=amp)
    is_on_cpu = network.device.type == "cpu"
    return Player(network, find_export(Path(directory), threads=threads) if is_on_cpu else None)
