"""Play: a network's answer in one of three styles."""

from typing import Annotated, Any, Literal

import chess
from pydantic import Field

from model.inference.player import Player
from pipeline.board.game import GameSoFar

SIMULATIONS = 64
"""Simulations of each search that the page asks for."""


class PlayRequest(GameSoFar):
    """A position in which the network is to move."""

    style: Literal["policy", "human", "strongest"] = "policy"
    """policy: draw a move from the rating's policy; human: correct it by a search; strongest:
    search."""
    rating: Annotated[int, Field(ge=400, le=3200)] = 1500
    clock: Annotated[int, Field(ge=0, le=65_535)] | None = None
    """Seconds left on the network's clock, for networks that read it."""


def answer(request: PlayRequest, player: Player) -> dict[str, Any]:
    """Return the network's move, and a sentence about it. Raises GameOverError."""
    board = request.board()
    move, probability = _choose(request, player, board)
    people = "" if probability is None else f", which {probability:.0%} would play"
    return {"move": move.uci(), "said": f"It played {board.san(move)}{people}."}


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
        simulations=SIMULATIONS if request.style == "human" else 0,
    )
    return choice.move, choice.probabilities[choice.move]


def reads_ratings(player: Player) -> bool:
    """Return whether a network reads the players' ratings."""
    return "elo" in player.evaluator.columns
