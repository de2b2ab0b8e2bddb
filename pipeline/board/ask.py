"""Ask a network for its move, and for the moves that players of each rating would play.

Axes: R ratings, A legal moves.
"""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

import chess
import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from engine.player import Line
from engine.player.policy import parse_time_control
from model.inference.player import Player
from pipeline.board.game import GameSoFar, describe_end, number_moves
from pipeline.board.show import planes_of_view
from pipeline.dataset.strata import TIME_CLASSES, classify_speeds

SIMULATIONS = 64
"""Simulations per search."""
UNTIMED_SPEED = "rapid"
"""Speed assumed for a game without a clock."""
MIN_DRAW_MOVE, MAX_DRAW_SCORE = 10, 0.5
"""The network accepts a draw from this move on, if it expects at most this score."""


class PlayRequest(GameSoFar):
    """A position in which the network is to move."""

    style: Literal["policy", "human", "strongest"] = "policy"
    """policy: sample from the policy for the rating; human: correct that policy by a search;
    strongest: play the search's best move."""
    rating: Annotated[int, Field(ge=400, le=3200)] = 1500
    clock: Annotated[int, Field(ge=0, le=65_535)] | None = None
    """Seconds left on the network's clock; None without a clock."""


@dataclass(frozen=True, slots=True)
class People:
    """The people whose moves a network predicts."""

    name: str = "players"
    is_one_person: bool = False

    def describe_share(self, share: float, rated: str = "") -> str:
        """Say how likely a move is: `34% of players would play`; `rated` follows the name."""
        if self.is_one_person:
            return f"{self.name} would play with a probability of {share:.0%}"
        return f"{share:.0%} of {self.name}{rated} would play"


PLAYERS = People()
"""Players in general, whose moves the embedded network predicts."""


def answer(request: PlayRequest, player: Player, people: People = PLAYERS) -> dict[str, Any]:
    """Return the network's move, a sentence about it, and the seconds to think about it.

    Raises FenError, GameError and GameOverError.
    """
    board = request.board()
    move, probability = _choose_move(request, player, board)
    said = f"It played {board.san(move)}"
    if probability is not None:
        rated = f" rated {request.rating}" if reads_ratings(player) else ""
        if rated and reads_speed(player):
            rated += f" in Lichess {name_speed(request.time_control)}"
        said += f", which {people.describe_share(probability, rated)}"
    seconds = 0.0
    if request.clock is not None and request.time_control:
        base, _ = parse_time_control(request.time_control)
        random = np.random.default_rng()
        seconds = draw_seconds(base, board.fullmove_number, request.clock, random)
    return {"move": move.uci(), "said": f"{said}.", "seconds": seconds}


def estimate_score(board: chess.Board, player: Player) -> float:
    """Return White's expected score by a search, or the result if the game is over."""
    if (result := describe_end(board)[0]) or not any(board.legal_moves):
        return {"1-0": 1.0, "0-1": 0.0}.get(result, 0.5)
    win, draw, _ = player.analyse(board, SIMULATIONS, lines=0).wdl
    score = win + draw / 2
    return score if board.turn else 1 - score


def consider_draw(request: GameSoFar, player: Player) -> dict[str, Any]:
    """Return whether the network accepts a draw offered by the side to move, and if not, why."""
    board = request.board()
    score = estimate_score(board, player)
    network_score = 1 - score if board.turn else score
    accepted = board.fullmove_number >= MIN_DRAW_MOVE and network_score <= MAX_DRAW_SCORE
    rule = f"It accepts from move {MIN_DRAW_MOVE} on, if it expects at most {MAX_DRAW_SCORE}."
    said = f"The network declines the draw: it expects {network_score:.2f} of a point. {rule}"
    return {"accepted": accepted, "said": "" if accepted else said}


def _choose_move(
    request: PlayRequest, player: Player, board: chess.Board
) -> tuple[chess.Move, float | None]:
    if request.style == "strongest":
        return player.analyse(board, SIMULATIONS, lines=0).moves[0].move, None
    rating = request.rating if reads_ratings(player) else None
    choice = player.choose(
        board,
        rating=rating,
        opponent_rating=rating,
        clock=request.clock if "clock" in player.evaluator.columns else None,
        time_control=_given_time_control(request, player),
        simulations=SIMULATIONS if request.style == "human" else 0,
    )
    return choice.move, choice.probabilities[choice.move]


def reads_ratings(player: Player) -> bool:
    """Return whether the players' ratings are an input of the network."""
    return "elo" in player.evaluator.columns


def reads_speed(player: Player) -> bool:
    """Return whether the game's time control is an input of the network."""
    return "base" in player.evaluator.columns


def name_speed(time_control: str) -> str:
    """Return Lichess's speed class of a time control; rapid if there is none."""
    base, increment = parse_time_control(time_control or UNTIMED_SPEED)
    return TIME_CLASSES[classify_speeds(np.array([base]), np.array([increment]))[0]]


def _given_time_control(request: GameSoFar, player: Player) -> str | None:
    """Return the time control for a network that reads it, else None."""
    return (request.time_control or UNTIMED_SPEED) if reads_speed(player) else None


# ---------------------------------------------------------------- ask

ASKED_RATINGS = tuple(range(800, 2601, 100))
"""Ratings at which the policy is evaluated; both players get the same rating."""
MAX_CURVES, MAX_LINES = 6, 4
"""Number of moves shown with a curve, and number shown with a variation."""
MAX_LINE_PLIES = 7
"""Maximum number of half-moves shown per variation."""


def ask(request: GameSoFar, player: Player) -> dict[str, Any]:
    """Return the likeliest moves by rating, the best lines of a search, and the input planes.

    Scores are expected scores for the side to move. Networks without ratings have flat curves.
    Raises FenError, GameError and GameOverError.
    """
    board = request.board()
    moves, policies_RA = _read_policies(request, player, board)
    likeliest = np.argsort(-policies_RA.max(axis=0), kind="stable")[:MAX_CURVES].tolist()
    analysis = player.analyse(board, SIMULATIONS, lines=MAX_LINES)
    win, draw, _ = analysis.wdl
    side, view = chess.COLOR_NAMES[board.turn], player.evaluator.preset.view
    planes = planes_of_view(board, view)
    text = f"Expected score for {side}: {win + draw / 2:.2f} (a win is 1), by "
    text += f"{analysis.simulations} simulations."
    text += "" if reads_ratings(player) else " This network does not read ratings."
    curves = []
    for at in likeliest:
        move, share = moves[at], policies_RA[:, at].round(4).tolist()
        curves.append({"uci": move.uci(), "san": board.san(move), "share": share})
    searched = [found for found in analysis.moves[:MAX_LINES] if found.visits or found.mate]
    return {
        "ratings": ASKED_RATINGS,
        "curves": curves,
        "text": text,
        "lines": [_describe_line(found, board) for found in searched],
        "view": f"{len(planes)} planes of 8 x 8 bits ({view}).",
        "planes": [(title, draw_plane(bits)) for title, bits in planes],
    }


def _read_policies(
    request: GameSoFar, player: Player, board: chess.Board
) -> tuple[list[chess.Move], NDArray[np.float64]]:
    """Return the legal moves, and their probabilities at ASKED_RATINGS, float64[R, A]."""
    if reads_ratings(player):
        time_control = _given_time_control(request, player)
        return player.policies(board, ASKED_RATINGS, time_control=time_control)
    known = player.choose(board, temperature=0).probabilities
    return list(known), np.tile(list(known.values()), (len(ASKED_RATINGS), 1))


def _describe_line(found: Line, board: chess.Board) -> dict[str, Any]:
    score = f"{(1 + found.value) / 2:.2f}"
    if found.mate:
        score = f"{'mates' if found.mate > 0 else 'is mated'} in {(abs(found.mate) + 1) // 2}"
    sans = [board.san(found.move), *number_moves(found.variation, board)[1:MAX_LINE_PLIES]]
    return {"uci": found.move.uci(), "sans": sans, "visits": found.visits, "score": score}


def draw_plane(bits: NDArray[np.uint8]) -> str:
    """Return an SVG path of the squares set in a plane, uint8[8, 8]; one square is one unit."""
    return "".join(f"M{column} {row}h1v1h-1z" for row, column in np.argwhere(bits).tolist())


# ---------------------------------------------------------------- time to think

THINK_QUANTILES = (0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 0.98)
"""Quantiles in each row of THINK_TIMES; longer times than the last one are not drawn."""
MIN_BLITZ_SECONDS = 180
"""Starting time below which a game is bullet."""
MOVE_BOUNDS, LEFT_BOUNDS = (9, 21, 41), (0.2, 0.5)
"""Bounds of the groups: move number, and share of the starting time that is left."""
THINK_TIMES = {
    (0, 0, 2): (0.0, 0.0, 0.008, 0.017, 0.019, 0.045, 0.11),
    (0, 1, 1): (0.0, 0.034, 0.069, 0.103, 0.154, 0.317, 0.638),
    (0, 1, 2): (0.0, 0.0, 0.02, 0.035, 0.053, 0.111, 0.243),
    (0, 2, 0): (0.0, 0.0, 0.1, 0.167, 0.25, 0.5, 1.0),
    (0, 2, 1): (0.0, 0.0, 0.044, 0.071, 0.111, 0.2, 0.39),
    (0, 2, 2): (0.0, 0.005, 0.026, 0.042, 0.065, 0.133, 0.29),
    (0, 3, 0): (0.0, 0.0, 0.0, 0.091, 0.182, 0.417, 1.0),
    (0, 3, 1): (0.0, 0.0, 0.022, 0.049, 0.077, 0.154, 0.277),
    (0, 3, 2): (0.0, 0.0, 0.013, 0.024, 0.035, 0.087, 0.189),
    (1, 0, 1): (0.0, 0.0, 0.007, 0.012, 0.023, 0.043, 0.081),
    (1, 0, 2): (0.0, 0.001, 0.004, 0.007, 0.011, 0.029, 0.071),
    (1, 1, 0): (0.0, 0.033, 0.091, 0.173, 0.272, 0.5, 0.82),
    (1, 1, 1): (0.0, 0.01, 0.025, 0.043, 0.079, 0.179, 0.381),
    (1, 1, 2): (0.0, 0.004, 0.01, 0.017, 0.031, 0.072, 0.156),
    (1, 2, 0): (0.0, 0.024, 0.065, 0.114, 0.2, 0.409, 0.727),
    (1, 2, 1): (0.0, 0.01, 0.025, 0.045, 0.079, 0.17, 0.352),
    (1, 2, 2): (0.0, 0.004, 0.011, 0.02, 0.035, 0.079, 0.176),
    (1, 3, 0): (0.0, 0.0, 0.034, 0.067, 0.125, 0.3, 0.667),
    (1, 3, 1): (0.0, 0.005, 0.014, 0.023, 0.039, 0.085, 0.195),
    (1, 3, 2): (0.0, 0.001, 0.005, 0.009, 0.016, 0.039, 0.1),
}
"""Share of the remaining time at each of THINK_QUANTILES, by speed, move number and time left."""
MAX_CLOCK_SHARE = 0.2
"""Maximum share of the remaining time for a move, so that the clock lasts."""
RESERVE_SECONDS = 0.5
"""Seconds that a move leaves on the clock, for the network and the page."""


def think_time_key(initial: float, move: int, left: float) -> tuple[int, int, int]:
    """Return the key of THINK_TIMES for a starting time, a move number and the seconds left."""
    speed, moves = int(initial >= MIN_BLITZ_SECONDS), int(np.digitize(move, MOVE_BOUNDS))
    return speed, moves, int(np.digitize(left / initial, LEFT_BOUNDS))


def draw_seconds(initial: float, move: int, left: float, random: np.random.Generator) -> float:
    """Draw the seconds that a person thinks about a move, limited so that the clock lasts."""
    speed, moves, rest = think_time_key(max(initial, 1.0), move, left)
    # early in a game, hardly any clock is low: use the next group that was measured
    keys = ((speed, moves, more) for more in range(rest, len(LEFT_BOUNDS) + 1))
    row = next(THINK_TIMES[key] for key in keys if key in THINK_TIMES)
    quantile = random.uniform(0, THINK_QUANTILES[-1])
    share = min(float(np.interp(quantile, THINK_QUANTILES, row)), MAX_CLOCK_SHARE)
    return min(share * left, max(left - RESERVE_SECONDS, 0.0))
