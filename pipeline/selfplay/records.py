"""A finished game as a line of the journal: its record, its searches, and its PGN.

record     the line of games.jsonl: number, moves (UCI), result, ending, and of games without
resignation: resign_ply
           (half-moves after which a side would have resigned) and resign_was_wrong (whether that
           side did not lose)
searches   a list for each searched move: half-move, then `search_fields`
pgn        the game, with the search's value after each move from White's view, in -1..1, as [%value
0.25]: not as [%eval],
           which holds an engine's centipawns in people's games, and which ingest reads
"""

from typing import Any

import chess
import chess.pgn
import numpy as np

from engine.board.position import to_board
from engine.encoding.planes import move_of
from engine.selfplay.game import ENDINGS, RESIGNED, TOO_LONG, UNEVENTFUL, Game, SearchResult

SITE = "https://fianchetto.invalid/selfplay/"
RESULTS = {1: "1-0", 0: "1/2-1/2", -1: "0-1"}
DIGITS = 6
"""Decimals of shares and values in the journal; float32 has hardly more."""


def game_entry(game: Game, explorer: str, seed: int) -> dict[str, Any]:
    """Return a game's line; another run of the same game returns the same."""
    assert game.ending is not None
    board, moves = to_board(game.start), []
    for label, promotion in zip(game.labels, game.promotions, strict=True):
        moves.append(move_of(label, promotion, board.turn))
        board.push(moves[-1])
    record = {
        "number": game.number,
        "moves": [move.uci() for move in moves],
        "result": RESULTS[game.result],
        "ending": ENDINGS[game.ending],
        "resign_ply": game.resign_ply,
        "resign_was_wrong": game.resign_was_wrong,
    }
    searches = [
        [ply, *search_fields(search)]
        for ply, search in enumerate(game.searches)
        if search is not None
    ]
    return {"record": record, "searches": searches, "pgn": _pgn(game, moves, explorer, seed)}


def search_fields(search: SearchResult) -> tuple[float, float, int, list[int], list[float]]:
    """Return a search's value, its best move's value, simulations, labels and shares.

    Promotions of one label are added up, and shares below a millionth left out. Values are the
    mover's.
    """
    labels, places = np.unique(search.labels, return_inverse=True)
    shares = np.bincount(places, weights=search.shares).round(DIGITS)
    kept = shares > 0.0
    values = round(search.value, DIGITS), round(search.best_value, DIGITS)
    return *values, search.simulations, labels[kept].tolist(), shares[kept].tolist()


def _pgn(game: Game, moves: list[chess.Move], explorer: str, seed: int) -> str:
    """Return the game as PGN; each searched move has its value, from White's view, as a comment."""
    tree = chess.pgn.Game()
    tree.setup(to_board(game.start))
    tree.headers["Event"] = f"self-play of {explorer}"
    tree.headers["Site"] = f"{SITE}{seed}-{game.number}"
    tree.headers["White"] = tree.headers["Black"] = explorer
    tree.headers["Result"] = RESULTS[game.result]
    tree.headers["Termination"] = (
        "adjudication" if game.ending in (TOO_LONG, UNEVENTFUL) else "normal"
    )
    node: chess.pgn.GameNode = tree
    for move, search in zip(moves, game.searches, strict=True):
        white = node.turn() == chess.WHITE
        node = node.add_variation(move)
        if search is not None:
            node.comment = f"[%value {search.value if white else -search.value:.4f}]"
    if game.ending == RESIGNED:
        node.comment = " ".join(
            filter(None, [node.comment, f"{'White' if game.result < 0 else 'Black'} resigns"])
        )
    return f"{tree}\n\n"
