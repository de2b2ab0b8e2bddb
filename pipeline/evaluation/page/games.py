"""Games to click through: a board after each move, and the curve of the players' evaluations."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import chess
import chess.engine
import chess.pgn
import chess.svg

from pipeline.evaluation.page import charts
from pipeline.evaluation.page.page import render, safe, small_board

FURTHEST = 10.0
"""Pawns at which the curve is cut off; mates are drawn there."""
SIDES = ("White's", "Black's")


def read_games(path: Path, count: int) -> list[chess.pgn.Game]:
    """Return the first games of a PGN file, none if it does not exist."""
    found: list[chess.pgn.Game] = []
    if path.is_file():
        with path.open(encoding="utf-8", errors="replace") as file:
            while len(found) < count and (game := chess.pgn.read_game(file)) is not None:
                found.append(game)
    return found


def shown_game(number: int, game: chess.pgn.Game) -> dict[str, Any]:
    """Return what the template shows of a game; evaluations are pawns from White's view, a curve for each player."""
    moves, curve = [], []
    for node in game.mainline():
        before = node.parent.board()
        found = node.eval()
        said = "" if found is None else f" ({_said(found.white())})"
        text = f"{before.fullmove_number}{'.' if before.turn else '...'} {before.san(node.move)}{said}"
        board = chess.svg.board(node.board(), lastmove=node.move, size=260)
        moves.append({"text": text, "svg": small_board(board, chess.WHITE)})
        if found is not None:
            pawns = found.white().score(mate_score=10_000) / 100
            mine = SIDES[0] if before.turn else SIDES[1]
            curve.append({"half-move": node.ply(), mine: max(-FURTHEST, min(FURTHEST, pawns))})
    headers = {name.lower(): game.headers.get(name, "?") for name in ("White", "Black", "Result")}
    drawn = safe(charts.lines(curve, "half-move", SIDES)) if curve else ""
    return {"number": number, "moves": moves, "curve": drawn, **headers}


def _said(score: chess.engine.Score) -> str:
    """Return a score in pawns, or as the moves to mate: #-3."""
    pawns = score.score()
    return str(score) if pawns is None else f"{pawns / 100:+.2f}"


def games_page(title: str, games: Sequence[chess.pgn.Game]) -> bytes:
    """Return a page of games to click through."""
    return render("games.html", title=title, games=[shown_game(number, game) for number, game in enumerate(games)])
