"""A finished game as a line of the journal: what anybody may read of it, what the search thought, and its PGN.

record     the line of games.jsonl: number, explorer, fen, book and moves (UCI), result, ending, plies, searches (full, quick),
           simulations, given_up (half-moves after which a side would have resigned, had the game not been played on),
           false (whether that side did not lose), material (pawns' worth that White is ahead at the end)
thoughts   a list for each move that was searched in full: half-move, value and probability of a draw (mover's view), labels,
           their shares of the improved policy; the moves of one label are added up, shares below a millionth are left out
pgn        the game, with the search's value after each move from White's view, in -1..1, as [%value 0.25]: not as [%eval],
           which people's games have an engine's centipawns in, and ingest reads
"""

from typing import Any

import chess
import chess.pgn
import numpy as np

from engine.board.position import to_board, to_fen
from engine.encoding.planes import move_of
from engine.selfplay.game import ENDINGS, RESIGNED, TOO_LONG, UNEVENTFUL, PlayedGame, SearchResult

SITE = "https://fianchetto.invalid/selfplay/"
RESULTS = {1: "1-0", 0: "1/2-1/2", -1: "0-1"}
WORTH = {chess.PAWN: 1, chess.KNIGHT: 3, chess.BISHOP: 3, chess.ROOK: 5, chess.QUEEN: 9}
DIGITS = 6
"""Decimals of shares and values in the journal; float32 has hardly more."""


def entry_of(game: PlayedGame, explorer: str, generation: int) -> dict[str, Any]:
    """Make a game's line; it holds nothing that another run of the same game would say otherwise."""
    board = to_board(game.start)
    moves = []
    for label, promotion in zip(game.labels.tolist(), game.promotions.tolist(), strict=True):
        moves.append(move_of(label, promotion, board.turn))
        board.push(moves[-1])
    searched = int((~np.isnan(game.values)).sum())
    thoughts = [[ply, *_told(thought)] for ply, thought in enumerate(game.searches) if thought is not None]
    record = {
        "number": game.number,
        "explorer": explorer,
        "fen": to_fen(game.start),
        "book": [move.uci() for move in moves[: game.book]],
        "moves": [move.uci() for move in moves[game.book :]],
        "result": RESULTS[game.result],
        "ending": ENDINGS[game.ending],
        "plies": len(moves),
        "full": len(thoughts),
        "quick": searched - len(thoughts),
        "simulations": game.simulations,
        "given_up": game.given_up,
        "false": game.falsely_given_up,
        "material": _material(board),
    }
    return {"record": record, "thoughts": thoughts, "pgn": _pgn(game, moves, explorer, generation)}


def _told(thought: SearchResult) -> tuple[float, float, list[int], list[float]]:
    """Return a thought's value, draw, labels and their shares."""
    labels, places = np.unique(thought.labels, return_inverse=True)
    shares = np.bincount(places, weights=thought.shares).round(DIGITS)
    kept = shares > 0.0
    return round(thought.value, DIGITS), round(thought.draw, DIGITS), labels[kept].tolist(), shares[kept].tolist()


def _material(board: chess.Board) -> int:
    """Return by how many pawns' worth White is ahead."""
    return sum(
        worth * (len(board.pieces(kind, chess.WHITE)) - len(board.pieces(kind, chess.BLACK)))
        for kind, worth in WORTH.items()
    )


def _pgn(game: PlayedGame, moves: list[chess.Move], explorer: str, generation: int) -> str:
    """Write the game as PGN; the comment of a move is what its mover thought, from White's view."""
    tree = chess.pgn.Game()
    tree.setup(to_board(game.start))
    tree.headers["Event"] = f"self-play of {explorer}"
    tree.headers["Site"] = f"{SITE}{generation}-{game.number}"
    tree.headers["Round"] = str(game.number + 1)
    tree.headers["White"] = tree.headers["Black"] = f"{explorer}, generation {generation}"
    tree.headers["Result"] = RESULTS[game.result]
    tree.headers["Termination"] = "adjudication" if game.ending in (TOO_LONG, UNEVENTFUL) else "normal"
    tree.headers["PlyCount"] = str(len(moves))
    node: chess.pgn.GameNode = tree
    for move, value in zip(moves, game.values.tolist(), strict=True):
        white = node.turn() == chess.WHITE
        node = node.add_variation(move)
        if not np.isnan(value):
            node.comment = f"[%value {value if white else -value:.4f}]"
    if game.ending == RESIGNED:
        node.comment = " ".join(filter(None, [node.comment, f"{'White' if game.result < 0 else 'Black'} resigns"]))
    return f"{tree}\n\n"
