"""The game as the GUI sends it: a starting position and the moves since; only new moves are played.

A GUI sends the whole game with every `position`. At move 200, replaying all of it would take longer than a fast move.
"""

from collections.abc import Sequence

import chess

from engine.board.position import FenError, from_fen, to_board
from engine.encoding.planes import LabelError, label_of
from engine.uci.commands import quote

MOST_MEN = {chess.PAWN: 8, chess.KNIGHT: 2, chess.BISHOP: 2, chess.ROOK: 2, chess.QUEEN: 1, chess.KING: 1}


class GameState:
    """The game that the last `position` sent."""

    def __init__(self) -> None:
        self.board = chess.Board()
        self.start = chess.STARTING_FEN
        """FEN of the first position."""
        self._words: list[str] = []

    def update(self, fen: str | None, words: Sequence[str]) -> str | None:
        """Apply a `position` (None: the starting position); return an error message, or None.

        An impossible FEN changes nothing. An illegal move and those after it are ignored, as in Stockfish.
        """
        start = fen or chess.STARTING_FEN
        if start != self.start or list(words[: len(self._words)]) != self._words:
            try:
                self.board = parse_playable(start)
            except FenError as error:
                return str(error)
            self.start, self._words = start, []
        for word in words[len(self._words) :]:
            try:
                move = self.board.parse_uci(word.lower())
                label_of(move, self.board.turn)  # raises LabelError for a null move
            except (chess.InvalidMoveError, chess.IllegalMoveError, LabelError):
                return f"illegal move {quote(word)}: it and the moves after it are ignored"
            self.board.push(move)
            self._words.append(word)
        return None


def parse_playable(fen: str) -> chess.Board:
    """Parse a FEN, or raise FenError; more pieces than promotions can make would overflow the arrays of moves."""
    board = to_board(from_fen(fen))
    for side in chess.COLORS:
        men = {kind: len(board.pieces(kind, side)) for kind in MOST_MEN}
        promoted = sum(max(men[kind] - most, 0) for kind, most in MOST_MEN.items() if kind != chess.PAWN)
        if men[chess.PAWN] + promoted > MOST_MEN[chess.PAWN]:
            raise FenError(f"no game leads to {quote(fen)}: too many men of {chess.COLOR_NAMES[side]}")
    return board
