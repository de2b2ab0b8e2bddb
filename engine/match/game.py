"""One game of a match. python-chess is the referee: it checks every move of either player."""

from dataclasses import dataclass

import chess
from chess.engine import Score

from engine.board.rules import ENDINGS, FIFTY, FIFTY_MOVES, MATE, MATERIAL, REPETITION, STALEMATE
from engine.match.config import Limit
from engine.match.openings import Opening
from engine.match.players import MoveRequest, PlayResult

DRAW = "1/2-1/2"


@dataclass(frozen=True, kw_only=True, slots=True)
class GameRecord:
    """A finished game, as one line of games.jsonl; lists leave out the book's moves."""

    game: int
    """Number from 0: games 2k and 2k + 1 share opening k; A is White in the even ones."""
    fen: str
    """Where the book's moves begin."""
    book: list[str]
    """The book's moves, UCI."""
    moves: list[str]
    """The players' moves, UCI."""
    scores: list[str]
    """The mover's score from White's view: `0.34` pawns, `#-3` mate in 3 for Black, or empty."""
    clocks: list[float] | None
    """Seconds left on the mover's clock after the move; None without clocks."""
    result: str
    """1-0, 0-1 or 1/2-1/2."""
    ending: str
    """checkmate, stalemate, material, repetition, fifty moves, adjudication; of forfeits: crash,
    timeout, illegal move."""
    forfeit: str | None
    """The player that lost by forfeit, `a` or `b`."""
    detail: str
    """Details of a forfeit."""

    @property
    def points(self) -> float:
        """A's points: 0, 0.5 or 1."""
        if self.result == DRAW:
            return 0.5
        return 1.0 if (self.result == "1-0") == (self.game % 2 == 0) else 0.0


class MatchGame:
    """A game in progress. Players are 0 (A) and 1 (B)."""

    def __init__(
        self, number: int, opening: Opening, limits: tuple[Limit, Limit], max_plies: int = 0
    ) -> None:
        self.number, self.opening, self.limits, self.max_plies = number, opening, limits, max_plies
        self.board = opening.board()
        self.moves: list[str] = []
        self.scores: list[str] = []
        self.left = [limit.base for limit in limits]
        self.made = [0, 0]
        """Moves of each player, without the book's."""
        self.clocks: list[float] = []
        self.end: tuple[str, str] | None = None
        """Result and ending, once it is over."""
        self.forfeit: str | None = None
        self.detail = ""

    @property
    def mover(self) -> int:
        """The player to move."""
        return int(self.board.turn == (self.number % 2 == 1))

    def request(self, slot: int) -> MoveRequest:
        """Return the request for the mover's next move."""
        white = self.number % 2
        clocks = (
            (self.left[white] or 0.0, self.left[1 - white] or 0.0)
            if any(limit.base for limit in self.limits)
            else None
        )
        moves = self.limits[self.mover].moves
        return MoveRequest(
            slot,
            self.board,
            clocks,
            None if moves is None else moves - self.made[self.mover] % moves,
        )

    def take(self, result: PlayResult, margin: float) -> None:
        """Apply the mover's result: play its move, or end the game.

        Being late by up to `margin` seconds is forgiven.
        """
        player, limit = self.mover, self.limits[self.mover]
        allowed = limit.movetime if limit.movetime is not None else self.left[player]
        if result.fault is None and allowed is not None and result.seconds > allowed + margin:
            result = PlayResult(
                None, None, result.seconds, "timeout", f"{result.seconds:.3f} s of {allowed:.3f}"
            )
        if result.move is None:
            self._forfeit(result)
            return
        if not self.board.is_legal(result.move):
            self._forfeit(PlayResult(None, None, result.seconds, "illegal move", result.move.uci()))
            return
        if (left := self.left[player]) is not None:
            self.left[player] = max(0.0, left - result.seconds) + limit.increment
        self.made[player] += 1
        if (
            limit.base is not None
            and limit.moves is not None
            and self.made[player] % limit.moves == 0
        ):
            self.left[player] = (self.left[player] or 0.0) + limit.base
        self.clocks.append(round(self.left[player] or 0.0, 3))
        white = self.board.turn == chess.WHITE
        self.moves.append(result.move.uci())
        self.scores.append(_format_score(result.score, white))
        self.board.push(result.move)
        self.end = self._over()

    def _forfeit(self, result: PlayResult) -> None:
        """End the game against the player to move."""
        assert result.fault is not None, "a result without a move has a fault"
        self.forfeit, self.detail = "ab"[self.mover], result.detail
        self.end = ("0-1" if self.board.turn == chess.WHITE else "1-0", result.fault)

    def _over(self) -> tuple[str, str] | None:
        """Return result and ending after a move, None while the game goes on."""
        board = self.board
        if not any(board.generate_legal_moves()):
            lost = "0-1" if board.turn == chess.WHITE else "1-0"
            return (lost, ENDINGS[MATE]) if board.is_check() else (DRAW, ENDINGS[STALEMATE])
        if board.is_insufficient_material():
            return DRAW, ENDINGS[MATERIAL]
        if board.halfmove_clock >= FIFTY_MOVES:
            return DRAW, ENDINGS[FIFTY]
        if board.is_repetition(3):
            return DRAW, ENDINGS[REPETITION]
        return (DRAW, "adjudication") if 0 < self.max_plies <= board.ply() else None

    def record(self) -> GameRecord:
        """Return the finished game."""
        assert self.end is not None, "only finished games are recorded"
        return GameRecord(
            game=self.number,
            fen=self.opening.fen,
            book=list(self.opening.moves),
            moves=self.moves,
            scores=self.scores,
            clocks=self.clocks if all(limit.base is not None for limit in self.limits) else None,
            result=self.end[0],
            ending=self.end[1],
            forfeit=self.forfeit,
            detail=self.detail,
        )


def _format_score(score: Score | None, white: bool) -> str:
    """Write a mover's score from White's view, as Lichess writes it in PGN."""
    if score is None:
        return ""
    score = score if white else -score
    mate = score.mate()
    return f"{score.score(mate_score=0) / 100:.2f}" if mate is None else f"#{mate}"
