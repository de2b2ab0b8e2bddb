"""A match: pairs of games, one opening with either color, played side by side.

Without time limits, one group holds many games, and a player is asked for its moves in all of them
at once: our search is one batch, engines think in parallel. With time limits, every group holds one
game, and there are only as many groups as can think at once without taking each other's time.
"""

import gc
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from engine.cores import cores
from engine.match.game import GameRecord, MatchGame
from engine.match.openings import Opening
from engine.match.players import Contestant, OwnSide, Side
from engine.match.sprt import SprtConfig, llr, pair_counts, verdict
from engine.match.uci_player import UciSide
from engine.progress import Stop, never

WIDTH = 64
"""Games side by side between our own players."""
PATIENCE = 60.0
"""Seconds without an answer after which an engine loses, in games without time limits."""


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
    """Play two games of every opening except those in `done`, and report each as it ends.

    Games begin in the order of their numbers. With `sequential`, the numbers of the games in play
    are less than `concurrency` apart (on a clock they may be more): a sequential test counts pairs
    in order and would ignore games far after a long one.

    When `stop` returns True (it is polled between moves), unfinished games are discarded. An
    engine's fault loses it the game (engine/match/uci_player.py); an error of our players is
    raised.

    `concurrency` is the number of games at a time; 0: 64 between networks and evaluators, 8 for
    each core with UCI engines; on a clock, one fewer than cores. A move may be `margin` seconds
    late. After `max_plies` half-moves, the opening's included, a game is a draw.
    """
    finished = set(done)
    numbers = deque(number for number in range(2 * len(openings)) if number not in finished)
    left = 2 * len(openings) - len(finished)
    if left <= 0:
        return
    timed = any(player.limit.timed for player in players)
    groups, width = _groups(players, concurrency, timed, left)
    lock = threading.Lock()
    failed = threading.Event()

    def halt() -> bool:
        return failed.is_set() or stop()

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
            _Group(players, openings, width, margin, max_plies).play(next_number, report_one, halt)
        except BaseException:
            failed.set()
            raise

    if timed:  # a full garbage collection took 100 ms, on a player's clock
        gc.collect()
        gc.freeze()
    try:
        with ThreadPoolExecutor(groups, thread_name_prefix="group") as pool:
            for future in [pool.submit(play_group) for _ in range(groups)]:
                future.result()
    finally:
        if timed:
            gc.unfreeze()


def _groups(
    players: tuple[Contestant, Contestant], concurrency: int, timed: bool, left: int
) -> tuple[int, int]:
    """Return the number of groups, and of games in each."""
    if timed:
        # without a core, the referee would delay the engines
        return min(left, concurrency or max(1, cores() - 1)), 1
    engines = any(player.evaluator is None for player in players)
    return 1, min(left, concurrency or (8 * cores() if engines else WIDTH))


def make_side(contestant: Contestant, width: int, patience: float) -> Side:
    """Make a side of `width` slots.

    An engine loses when it exceeds its time by `patience` seconds.
    """
    if contestant.evaluator is None:
        return UciSide(contestant, width, patience)
    return OwnSide(contestant, width)


class _Group:
    """Up to `width` games side by side, and both players in them."""

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
        self.sides: list[Side] = []
        for player in players:
            patience = margin if player.limit.timed else PATIENCE
            self.sides.append(make_side(player, width, patience))
        self.games: dict[int, MatchGame] = {}

    def play(
        self,
        next_number: Callable[[int | None], int | None],
        report: Callable[[GameRecord], None],
        stop: Stop,
    ) -> None:
        """Play until there are no more games, or `stop` returns True."""
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
        """Begin games in the free slots; `next_number` gets the lowest number in play."""
        for slot in range(self.width):
            if slot in self.games:
                continue
            oldest = min((game.number for game in self.games.values()), default=None)
            if (number := next_number(oldest)) is None:
                break
            game = MatchGame(number, self.openings[number // 2], self.limits, self.max_plies)
            self.games[slot] = game
            for side in self.sides:
                side.new_game(slot, game.board, number)

    def _round(self, pool: ThreadPoolExecutor, report: Callable[[GameRecord], None]) -> None:
        """Ask for a move in every game."""
        asked = [
            [slot for slot, game in self.games.items() if game.mover == player] for player in (0, 1)
        ]
        futures = [
            pool.submit(side.play, [self.games[slot].request(slot) for slot in slots])
            if slots
            else None
            for side, slots in zip(self.sides, asked, strict=True)
        ]
        for slots, future in zip(asked, futures, strict=True):
            for slot, result in zip(slots, future.result() if future else [], strict=True):
                self.games[slot].take(result, self.margin)
        for slot in sorted(slot for slot, game in self.games.items() if game.end is not None):
            report(self.games.pop(slot).record())


def pairs_to_decision(points: Sequence[float | None], config: SprtConfig) -> int | None:
    """Return after how many pairs the test accepts H0 or H1, None if it is undecided.

    `points` are A's of games 0, 1, 2 ..., None for an unfinished one. Pairs count in the order of
    their numbers, not of their ends, since short games are not a fair sample of all.
    """
    counts = np.zeros(5, dtype=np.int64)
    for pair in range(len(points) // 2):
        first, second = points[2 * pair], points[2 * pair + 1]
        if first is None or second is None:
            return None
        counts += pair_counts((first, second))
        if verdict(llr(counts.tolist(), config), config) != "undecided":
            return pair + 1
    return None
