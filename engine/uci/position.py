"""The game as the GUI sends it: a starting position and the moves since; only new moves are played.

A GUI sends the whole game with every `position`. At move 200, replaying all of it would take longer
than a fast move.
"""

from collections.abc import Sequence

import chess

from engine.encoding.planes import LabelError, label_of
from engine.player.boards import castling_rights_are_kept, parse_playable
from engine.uci.commands import CommandError, quote


class GameState:
    """The game that the last `position` sent."""

    def __init__(self) -> None:
        self.board: chess.Board | None = chess.Board()
        """The game; None after a position that was refused."""
        self._start = chess.STARTING_FEN
        self._words: list[str] = []

    def refuse(self) -> None:
        """Drop the position until the next valid one, since a move of an old one would be wrong."""
        self.board, self._start, self._words = None, "", []

    def update(self, fen: str | None, words: Sequence[str]) -> str:
        """Apply a `position` (None: the starting position); return a note about it, or "".

        Raises FenError for a position that cannot be played, and CommandError for an illegal move.
        """
        start, note = fen or chess.STARTING_FEN, ""
        if start != self._start or list(words[: len(self._words)]) != self._words:
            self.refuse()
            board = parse_playable(start)
            if not castling_rights_are_kept(start, board):
                note = f"castling rights without king and rook at home are dropped: {quote(start)}"
            self.board, self._start = board, start
        assert self.board is not None, "a game without a position has no start"
        for word in words[len(self._words) :]:
            try:
                move = self.board.parse_uci(word.lower())
                label_of(move, self.board.turn)  # raises LabelError for a null move
            except (chess.InvalidMoveError, chess.IllegalMoveError, LabelError):
                raise CommandError(f"illegal move {quote(word)}: the position is refused") from None
            self.board.push(move)
            self._words.append(word)
        return note
