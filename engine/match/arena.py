"""Play a match: pairs of games, each opening twice with colors reversed, many at a time.

Without time limits, one group plays many games, and each player gets the positions of all of them
at once: this project's search evaluates them in one batch, and engines think in parallel. With time
limits, each group plays one game, and by default one core is left free, so that games do not slow
each other down.

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

from engine.board.rules import (
    ENDINGS,
    FIFTY_MOVES,
    FIFTY_MOVES_PLIES,
    INSUFFICIENT_MATERIAL,
    MATE,
    REPETITION,
    STALEMATE,
)
from engine.cores import count_cores
from engine.match import Limit
from engine.match.openings import Opening
from engine.match.players import Contestant, LocalSide, MoveRequest, PlayResult
from engine.match.uci_player import UciSide
from engine.progress import Stop, never

LOCAL_CONCURRENCY = 64
"""Number of games at a time between players of this project, by default."""
MOVE_TIMEOUT_SECONDS = 60.0
"""Seconds after which an engine without an answer loses, in games without time limits."""
DRAW_RESULT = "1/2-1/2"


@dataclass(frozen=True, kw_only=True, slots=True)
class GameRecord:
    """A finished game, as one line of games.jsonl; only `book` includes the book's moves."""

    game: int
    """Game number from 0: games 2k and 2k + 1 have opening k; A is White in even games."""
    fen: str
    """Position before the book's moves."""
    book: list[str]
    """The book's moves, in UCI notation."""
    moves: list[str]
    """The players' moves, in UCI notation."""
    scores: list[str]
    """Each mover's score in White's view: `0.34` pawns, `#-3` mate in 3 for Black, "" for none."""
    clocks: list[float] | None
    """Seconds left on the mover's clock after each move; None unless both players have a clock."""
    result: str
    """1-0, 0-1 or 1/2-1/2."""
    ending: str
    """checkmate, stalemate, material, repetition, fifty moves or adjudication; for forfeits: crash,
    timeout or illegal move."""
    forfeit: str | None
    """The player that lost by forfeit, `a` or `b`; None if neither did."""
    detail: str
    """Description of the fault that caused a forfeit; empty without one."""

    @property
    def points(self) -> float:
        """A's points: 0, 0.5 or 1."""
        if self.result == DRAW_RESULT:
            return 0.5
        return 1.0 if (self.result == "1-0") == (self.game % 2 == 0) else 0.0


class MatchGame:
    """Game in progress; the players are 0 (A) and 1 (B)."""

    def __init__(
        self, number: int, opening: Opening, limits: tuple[Limit, Limit], max_plies: int = 0
    ) -> None:
        self.number, self.opening, self.limits, self.max_plies = number, opening, limits, max_plies
        self.board = opening.board()
        self.moves: list[str] = []
        self.scores: list[str] = []
        self.seconds_left = [limit.base for limit in limits]
        self.moves_made = [0, 0]
        """Number of moves of each player, without the book's."""
        self.clocks: list[float] = []
        self.end: tuple[str, str] | None = None
        """Result and ending; None while the game goes on."""
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
            clocks = self.seconds_left[white] or 0.0, self.seconds_left[black] or 0.0
        increments = self.limits[white].increment, self.limits[black].increment
        moves = self.limits[self.mover].moves
        to_go = None if moves is None else moves - self.moves_made[self.mover] % moves
        return MoveRequest(slot, self.board, clocks, to_go, increments)

    def apply_result(self, result: PlayResult, margin: float) -> None:
        """Apply the mover's result: play its move, or end the game.

        A move may exceed its time by `margin` seconds.
        """
        player, limit, seconds = self.mover, self.limits[self.mover], result.seconds
        left = self.seconds_left[player]
        allowed = limit.movetime if limit.movetime is not None else left
        if result.fault is None and allowed is not None and seconds > allowed + margin:
            return self._lose("timeout", f"{seconds:.3f} s of {allowed:.3f}")
        if result.move is None:
            assert result.fault is not None, "a result without a move must have a fault"
            return self._lose(result.fault, result.detail)
        if not self.board.is_legal(result.move):
            return self._lose("illegal move", result.move.uci())
        self.moves_made[player] += 1
        if left is not None:
            left = max(0.0, left - seconds) + limit.increment
            is_control = limit.moves and self.moves_made[player] % limit.moves == 0
            if limit.base is not None and is_control:
                left += limit.base
            self.seconds_left[player] = left
        self.clocks.append(round(left or 0.0, 3))
        self.moves.append(result.move.uci())
        self.scores.append(_format_score(result.score, self.board.turn))
        self.board.push(result.move)
        self.end = self._find_end()
        return None

    def _lose(self, fault: str, detail: str) -> None:
        self.forfeit, self.detail = "ab"[self.mover], detail
        self.end = ("0-1" if self.board.turn == chess.WHITE else "1-0", fault)

    def _find_end(self) -> tuple[str, str] | None:
        """Return the result and ending of a game that is over, or None."""
        board = self.board
        if not any(board.generate_legal_moves()):
            lost = "0-1" if board.turn == chess.WHITE else "1-0"
            return (lost, ENDINGS[MATE]) if board.is_check() else (DRAW_RESULT, ENDINGS[STALEMATE])
        if board.is_insufficient_material():
            return DRAW_RESULT, ENDINGS[INSUFFICIENT_MATERIAL]
        if board.halfmove_clock >= FIFTY_MOVES_PLIES:
            return DRAW_RESULT, ENDINGS[FIFTY_MOVES]
        if board.is_repetition(3):
            return DRAW_RESULT, ENDINGS[REPETITION]
        return (DRAW_RESULT, "adjudication") if 0 < self.max_plies <= board.ply() else None

    def record(self) -> GameRecord:
        """Return the record of the finished game."""
        assert self.end is not None, "only a finished game has a record"
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
    """Format a mover's score from White's view, as Lichess does in PGN."""
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
    are less than `concurrency` apart (except with time limits): a sequential test counts pairs in
    order, and could not use the games that were played beside a long one.

    `stop` is polled between moves; when it returns True, unfinished games are discarded. An engine
    that fails loses its game (engine/match/uci_player.py). Errors of this project's players are
    raised.

    `concurrency` is the number of games at a time: by default 64 without UCI engines, 8 per core
    with them, and with time limits one less than there are cores. A move may be `margin` seconds
    late. A game is a draw after `max_plies` half-moves, including the opening; 0 is no limit.
    """
    finished = set(done)
    numbers = deque(number for number in range(2 * len(openings)) if number not in finished)
    if not numbers:
        return
    is_timed = any(player.limit.is_timed for player in players)
    has_engine = any(player.evaluator is None for player in players)
    if is_timed:  # one core is for the referee, which would delay an engine on the same core
        groups, width = min(len(numbers), concurrency or max(1, count_cores() - 1)), 1
    else:
        default = 8 * count_cores() if has_engine else LOCAL_CONCURRENCY
        groups, width = 1, min(len(numbers), concurrency or default)
    lock = threading.Lock()
    failed = threading.Event()

    def next_number(oldest: int | None) -> int | None:
        with lock:
            if not numbers or (sequential and oldest is not None and numbers[0] >= oldest + width):
                return None
            return numbers.popleft()

    def report_game(record: GameRecord) -> None:
        with lock:
            if not failed.is_set():
                report(record)

    def play_group() -> None:
        try:
            group = _Group(players, openings, width, margin, max_plies)
            group.play(next_number, report_game, lambda: failed.is_set() or stop())
        except BaseException:
            failed.set()
            raise

    if is_timed:  # a full garbage collection would take 100 ms of a player's clock
        gc.collect()
        gc.freeze()
    try:
        with ThreadPoolExecutor(groups, thread_name_prefix="group") as pool:
            for future in [pool.submit(play_group) for _ in range(groups)]:
                future.result()
    finally:
        if is_timed:
            gc.unfreeze()


class _Group:
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
                extra_seconds = margin if player.limit.is_timed else MOVE_TIMEOUT_SECONDS
                self.sides.append(UciSide(player, width, extra_seconds))
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
                    self._play_round(pool, report)
            finally:
                for side in self.sides:
                    side.close()

    def _begin_games(self, next_number: Callable[[int | None], int | None]) -> None:
        """Begin games in free slots; `next_number` gets the lowest number of a game in progress."""
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

    def _play_round(self, pool: ThreadPoolExecutor, report: Callable[[GameRecord], None]) -> None:
        slots_by_mover: list[list[int]] = [[], []]
        for slot, game in self.games.items():
            slots_by_mover[game.mover].append(slot)
        answers = [
            (slots, pool.submit(side.play, [self.games[slot].request(slot) for slot in slots]))
            for side, slots in zip(self.sides, slots_by_mover, strict=True)
            if slots
        ]
        for slots, answer in answers:
            for slot, result in zip(slots, answer.result(), strict=True):
                self.games[slot].apply_result(result, self.margin)
        for slot in sorted(slot for slot, game in self.games.items() if game.end is not None):
            report(self.games.pop(slot).record())
