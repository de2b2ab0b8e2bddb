"""Ask a network about a position: its move, and the moves that players of each rating would play.

Axes: R ratings, A legal moves.
"""

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
from pipeline.board.think_times import draw_seconds
from pipeline.dataset.strata import TIME_CLASSES, classify_speeds

SIMULATIONS = 64
"""Simulations per search."""
UNTIMED_SPEED = "rapid"
"""Speed assumed for a game without a clock."""
DRAW_MOVE, DRAW_SCORE = 10, 0.5
"""The network accepts a draw from this move on, if it expects at most this score."""


class PlayRequest(GameSoFar):
    """A position in which the network is to move."""

    style: Literal["policy", "human", "strongest"] = "policy"
    """policy: sample from the policy for the rating; human: correct that policy by a search;
    strongest: play the search's best move."""
    rating: Annotated[int, Field(ge=400, le=3200)] = 1500
    clock: Annotated[int, Field(ge=0, le=65_535)] | None = None
    """Seconds left on the network's clock, for networks that read it."""


def answer(request: PlayRequest, player: Player) -> dict[str, Any]:
    """Return the network's move, a sentence about it, and the seconds to think about it.

    Raises GameOverError.
    """
    board = request.board()
    move, probability = _choose(request, player, board)
    who = "players"
    if reads_ratings(player):
        speed = f" in Lichess {name_speed(request.time_control)}" if reads_speed(player) else ""
        who += f" rated {request.rating}{speed}"
    people = "" if probability is None else f", which {probability:.0%} of {who} would play"
    seconds = 0.0
    if request.clock is not None and request.time_control:
        base, _ = parse_time_control(request.time_control)
        random = np.random.default_rng()
        seconds = draw_seconds(base, board.fullmove_number, request.clock, random)
    said = f"It played {board.san(move)}{people}."
    return {"move": move.uci(), "said": said, "seconds": seconds}


def estimate_score(board: chess.Board, player: Player) -> float:
    """Return White's expected score by a search, or the result if the game is over."""
    if (result := describe_end(board)[0]) or not any(board.legal_moves):
        return {"1-0": 1.0, "0-1": 0.0}.get(result, 0.5)
    win, draw, _ = player.analyse(board, SIMULATIONS, lines=0).wdl
    score = win + draw / 2
    return score if board.turn else 1 - score


def consider_draw(request: GameSoFar, player: Player) -> dict[str, Any]:
    """Answer a draw that the side to move offers: whether the network accepts, and why."""
    board = request.board()
    score = estimate_score(board, player)
    own = 1 - score if board.turn else score
    accepted = board.fullmove_number >= DRAW_MOVE and own <= DRAW_SCORE
    rule = f"It accepts from move {DRAW_MOVE} on, if it expects at most {DRAW_SCORE}."
    said = f"The network declines the draw: it expects {own:.2f} of a point. {rule}"
    return {"accepted": accepted, "said": "" if accepted else said}


def _choose(
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
    """Return the speed class of a time control; Lichess rates each class separately."""
    base, increment = parse_time_control(time_control or UNTIMED_SPEED)
    return TIME_CLASSES[classify_speeds(np.array([base]), np.array([increment]))[0]]


def _given_time_control(request: GameSoFar, player: Player) -> str | None:
    """Return the time control for a network that reads it, else None."""
    return (request.time_control or UNTIMED_SPEED) if reads_speed(player) else None


# ---------------------------------------------------------------- ask

RATINGS = tuple(range(800, 2601, 100))
"""Ratings at which the policy is evaluated; both players get the same rating."""
MAX_CURVES, MAX_LINES = 6, 4
"""Number of moves shown with a curve, and number shown with a variation."""
MAX_LINE_PLIES = 7
"""Maximum number of half-moves shown per variation."""


def ask(request: GameSoFar, player: Player) -> dict[str, Any]:
    """Return the likeliest moves by rating, the best lines of a search, and the input planes.

    Scores are expected scores for the side to move. Networks without ratings have flat curves.
    Raises GameOverError.
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
        "ratings": RATINGS,
        "curves": curves,
        "text": text,
        "lines": [_describe_line(found, board) for found in searched],
        "view": f"{len(planes)} planes of 8 x 8 bits ({view}).",
        "planes": [(title, draw_plane(bits)) for title, bits in planes],
    }


def _read_policies(
    request: GameSoFar, player: Player, board: chess.Board
) -> tuple[list[chess.Move], NDArray[np.float64]]:
    """Return the legal moves and their probabilities float64[R, A]."""
    if reads_ratings(player):
        time_control = _given_time_control(request, player)
        return player.policies(board, RATINGS, time_control=time_control)
    known = player.choose(board, temperature=0).probabilities
    return list(known), np.tile(list(known.values()), (len(RATINGS), 1))


def _describe_line(found: Line, board: chess.Board) -> dict[str, Any]:
    score = f"{(1 + found.value) / 2:.2f}"
    if found.mate:
        score = f"{'mates' if found.mate > 0 else 'is mated'} in {(abs(found.mate) + 1) // 2}"
    sans = [board.san(found.move), *number_moves(found.variation, board)[1:MAX_LINE_PLIES]]
    return {"uci": found.move.uci(), "sans": sans, "visits": found.visits, "score": score}


def draw_plane(bits: NDArray[np.uint8]) -> str:
    """Return an SVG path of the squares set in a plane, uint8[8, 8]; one square is one unit."""
    return "".join(f"M{column} {row}h1v1h-1z" for row, column in np.argwhere(bits).tolist())
