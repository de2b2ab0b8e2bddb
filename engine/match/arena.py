"""A match: pairs of games, each opening twice with colors reversed, many at a time.

Without time limits, one group holds many games, and each player gets the positions of all of them
at once: this project's search makes one batch, engines think in parallel. With time limits, each
group holds one game, and there are only as many groups as can run without slowing each other down.

python-chess is the referee and checks every move.
"""

import gc
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import chess
from chess.engine import Score

from engine.board.rules import ENDINGS, FIFTY, FIFTY_MOVES, MATE, MATERIAL, REPETITION, STALEMATE
from engine.cores import count_cores
from engine.match import Limit
from engine.match.openings import Opening
from engine.match.players import Contestant, LocalSide, MoveRequest, PlayResult
from engine.match.uci_player import UciSide
from engine.progress import Stop, never

WIDTH = 64
"""Games at a time between players of this project."""
MOVE_TIMEOUT_SECONDS = 60.0
"""Seconds without an answer after which an engine loses, in games without time limits."""
DRAW = "1/2-1/2"


@dataclass(frozen=True, kw_only=True, slots=True)
class GameRecord:
    """A finished game, as one line of games.jsonl; the lists exclude the book's moves."""

    game: int
    """Number from 0: games 2k and 2k + 1 share opening k; A is White in the even ones."""
    fen: str
    """Position before the book's moves."""
    book: list[str]
    """The book's moves, in UCI notation."""
    moves: list[str]
    """The players' moves, in UCI notation."""
    scores: list[str]
    """The mover's score from White's view: `0.34` pawns, `#-3` mate in 3 for Black, or empty."""
    clocks: list[float] | None
    """Seconds left on the mover's clock after the move; None without clocks."""
    result: str
    """1-0, 0-1 or 1/2-1/2."""
    ending: str
    """checkmate, stalemate, material, repetition, fifty moves or adjudication; for forfeits: crash,
    timeout or illegal move."""
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
        """Moves of each player, excluding the book's."""
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
        white, black = self.number % 2, 1 - self.number % 2
        clocks = None
        if any(limit.base for limit in self.limits):
            clocks = self.left[white] or 0.0, self.left[black] or 0.0
        increments = self.limits[white].increment, self.limits[black].increment
        moves = self.limits[self.mover].moves
        to_go = None if moves is None else moves - self.made[self.mover] % moves
        return MoveRequest(slot, self.board, clocks, to_go, increments)

    def apply_result(self, result: PlayResult, margin: float) -> None:
        """Apply the mover's result: play its move, or end the game.

        A move may exceed its time by `margin` seconds.
        """
        player, limit, seconds = self.mover, self.limits[self.mover], result.seconds
        left = self.left[player]
        allowed = limit.movetime if limit.movetime is not None else left
        if result.fault is None and allowed is not None and seconds > allowed + margin:
            return self._lose("timeout", f"{seconds:.3f} s of {allowed:.3f}")
        if result.move is None:
            assert result.fault is not None, "a result without a move has a fault"
            return self._lose(result.fault, result.detail)
        if not self.board.is_legal(result.move):
            return self._lose("illegal move", result.move.uci())
        self.made[player] += 1
        if left is not None:
            left = max(0.0, left - seconds) + limit.increment
            if limit.base is not None and limit.moves and self.made[player] % limit.moves == 0:
                left += limit.base
            self.left[player] = left
        self.clocks.append(round(left or 0.0, 3))
        self.moves.append(result.move.uci())
        self.scores.append(_format_score(result.score, self.board.turn))
        self.board.push(result.move)
        self.end = self._over()
        return None

    def _lose(self, fault: str, detail: str) -> None:
        """End the game as a loss of the player to move."""
        self.forfeit, self.detail = "ab"[self.mover], detail
        self.end = ("0-1" if self.board.turn == chess.WHITE else "1-0", fault)

    def _over(self) -> tuple[str, str] | None:
        """Return the result and ending of a game that is over, or None."""
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
        """Return the record of the finished game."""
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
    """Format a mover's score from White's view, as in Lichess PGN."""
    if score is None:
        return ""
    score = score if white else -score
    mate = score.mate()
    return f"{score.score(mate_score=0) / 100:.2f}" if mate is None else f"#{mate}"


def play(
    players: tuple[Contestant, Contestant],
    openings: Sequence[Opening],
    *,
    report: Callable[[GameRecord], None],
    concurrency: int = 0,
    margin: float = 0.05,
    max_plies: int = 600,
    done: Iterable[int] = (),
    sequential: bool = False,
    stop: Stop = never,
) -> None:
    """Play two games of each opening, except the game numbers in `done`; report each at its end.

    Games begin in the order of their numbers. With `sequential`, the numbers of games in progress
    are less than `concurrency` apart (except on a clock), since a sequential test counts pairs in
    order and cannot use later games before a long one ends.

    When `stop` returns True (it is polled between moves), unfinished games are discarded. An
    engine that fails loses its game (engine/match/uci_player.py). An error of this project's
    players is raised.

    `concurrency` is the number of games at a time. 0 means 64 without UCI engines, 8 per core with
    them, and cores - 1 on a clock. A move may be `margin` seconds late. A game is a draw after
    `max_plies` half-moves, including the opening.
    """
    finished = set(done)
    numbers = deque(number for number in range(2 * len(openings)) if number not in finished)
    if not numbers:
        return
    timed = any(player.limit.is_timed for player in players)
    engines = any(player.evaluator is None for player in players)
    if timed:  # a referee that shares a core would delay the engines
        groups, width = min(len(numbers), concurrency or max(1, count_cores() - 1)), 1
    else:
        suited = 8 * count_cores() if engines else WIDTH
        groups, width = 1, min(len(numbers), concurrency or suited)
    lock = threading.Lock()
    failed = threading.Event()

    def next_number(oldest: int | None) -> int | None:
        with lock:
            if not numbers or (sequential and oldest is not None and numbers[0] >= oldest + width):
                return None
            return numbers.popleft()

    def report_one(record: GameRecord) -> None:
        with lock:
            if not failed.is_set():
                report(record)

    def play_group() -> None:
        try:
            group = _Group(players, openings, width, margin, max_plies)
            group.play(next_number, report_one, lambda: failed.is_set() or stop())
        except BaseException:
            failed.set()
            raise

    if timed:  # a full garbage collection would take 100 ms of a player's clock
        gc.collect()
        gc.freeze()
    try:
        with ThreadPoolExecutor(groups, thread_name_prefix="group") as pool:
            for future in [pool.submit(play_group) for _ in range(groups)]:
                future.result()
    finally:
        if timed:
            gc.unfreeze()


class _Group:
    """Up to `width` games at a time between two players."""

    def __init__(
        self,
        players: tuple[Contestant, Contestant],
        openings: Sequence[Opening],
        width: int,
        margin: float,
        max_plies: int,
    ) -> None:
        self.openings, self.width, self.margin, self.max_plies = openings, width, margin, max_plies
        self.limits = (players[0].limit, players[1].limit)
        self.sides: list[LocalSide | UciSide] = []
        for player in players:
            if player.evaluator is None:
                patience = margin if player.limit.is_timed else MOVE_TIMEOUT_SECONDS
                self.sides.append(UciSide(player, width, patience))
            else:
                self.sides.append(LocalSide(player, width))
        self.games: dict[int, MatchGame] = {}

    def play(
        self,
        next_number: Callable[[int | None], int | None],
        report: Callable[[GameRecord], None],
        stop: Stop,
    ) -> None:
        """Play until no games are left or `stop` returns True."""
        with ThreadPoolExecutor(2, thread_name_prefix="side") as pool:
            try:
                while not stop():
                    self._begin_games(next_number)
                    if not self.games:
                        break
                    self._round(pool, report)
            finally:
                for side in self.sides:
                    side.close()

    def _begin_games(self, next_number: Callable[[int | None], int | None]) -> None:
        """Begin games in the free slots; `next_number` takes the lowest number in progress."""
        for slot in range(self.width):
            if slot in self.games:
                continue
            oldest = min((game.number for game in self.games.values()), default=None)
            if (number := next_number(oldest)) is None:
                break
            game = MatchGame(number, self.openings[number // 2], self.limits, self.max_plies)
            self.games[slot] = game
            for side in self.sides:
                side.games[slot] = number

    def _round(self, pool: ThreadPoolExecutor, report: Callable[[GameRecord], None]) -> None:
        """Play one move in every game."""
        asked: list[list[int]] = [[], []]
        for slot, game in self.games.items():
            asked[game.mover].append(slot)
        answers = [
            (slots, pool.submit(side.play, [self.games[slot].request(slot) for slot in slots]))
            for side, slots in zip(self.sides, asked, strict=True)
            if slots
        ]
        for slots, answer in answers:
            for slot, result in zip(slots, answer.result(), strict=True):
                self.games[slot].apply_result(result, self.margin)
        for slot in sorted(slot for slot, game in self.games.items() if game.end is not None):
            report(self.games.pop(slot).record())
