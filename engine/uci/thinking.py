"""From a `go` to a move: the tree kept between moves, the search within its limits, and simpler moves where time is short.

All of it runs in the thinking thread. An error here must not lose the game: it is reported, and a simpler move is played.
"""

import gc
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import chess
import numpy as np
from numpy.typing import NDArray

from engine.board.movegen import perft
from engine.board.position import from_board
from engine.encoding.planes import label_of, move_of
from engine.evaluation import handwritten
from engine.evaluation.evaluator import Evaluator
from engine.search import Root, Search, SearchConfig
from engine.search.chess_rules import position_and_history
from engine.search.time_manager import Budget, RoundTimer, budget
from engine.uci.commands import shown
from engine.uci.info import effort, info_lines, moves_of, permille, ranked, score
from engine.uci.job import Job
from engine.uci.options import Options
from engine.uci.policy_move import known_of, policy_move
from engine.uci.position import GameHistory
from engine.uci.stop_condition import StopCondition

CHUNK = 1024
"""Simulations after which the clock is read at the latest: lines that the rules end need no evaluator, so no round."""
MOST_NARROWED = 1_000_000
"""Simulations of a search of some moves only, which is one run, since such a tree begins anew with every run."""
MOST_SIMULATIONS = 1_000_000_000
"""In one tree, whose visits are 32 bits."""
ROUNDS_WANTED = 16
"""Leaves go to the evaluator together only as far as a move's time still has so many rounds."""
NO_MOVE = "bestmove (none)"
"""Where the game is over; Stockfish's words."""


@dataclass(frozen=True, slots=True)
class BestMove:
    """The move that is played, and the expected reply."""

    move: chess.Move
    reply: chess.Move | None = None

    def __str__(self) -> str:
        """Write it in the protocol's words."""
        return f"bestmove {self.move.uci()}" + (f" ponder {self.reply.uci()}" if self.reply else "")


class Thinker:
    """The player: an evaluator, a search tree, and the game that the tree's root is of."""

    def __init__(
        self,
        say: Callable[[str], None],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Write by `say`, a line at a time."""
        self.evaluator: Evaluator | None = None
        self.debug = False
        self._say, self._clock = say, clock
        self._search: Search | None = None
        self._made: SearchConfig | None = None
        self._history: GameHistory | None = None
        self._evaluation_seconds = 0.0
        self._longest_round = 0.0

    def use(self, evaluator: Evaluator) -> None:
        """Play with an evaluator from now on, and measure how long it takes for one position."""
        warm_up(evaluator)
        gc.freeze()  # what libraries have made stays; looking through it again would cost a fast move 50 ms
        self.evaluator, self._made = evaluator, None
        board, seconds = chess.Board(), []
        for _ in range(2):
            begun = self._clock()
            policy_move(evaluator, board, list(board.legal_moves))
            seconds.append(self._clock() - begun)
        self._evaluation_seconds = self._longest_round = min(seconds)

    def forget(self) -> None:
        """Treat the next position as a new game's."""
        self._history = None

    def think(self, job: Job) -> None:
        """Answer a `go`."""
        if job.go.perft is not None:
            self._count(job, job.go.perft)
            job.answered = True
            return
        legal = list(job.board.legal_moves)
        if legal:
            last = str(self._answer(job, legal))
        else:
            self._say(f"info depth 0 score {'mate 0' if job.board.is_check() else 'cp 0'}")
            last = NO_MOVE
        job.wait()
        job.answered = True
        self._say(last)

    def _answer(self, job: Job, legal: list[chess.Move]) -> BestMove:
        """Return a move; an error is reported, and the next simpler way is tried."""
        for way in (self._decide, self._by_hand):
            try:
                return way(job, legal)
            except Exception as error:  # noqa: BLE001 - a game in progress is worth more than a traceback
                self.forget()
                self._made = None
                self._say(
                    f"info string error, a simpler move is played: {type(error).__name__}: {shown(str(error), 300)}"
                )
                if self.debug:
                    for line in traceback.format_exc().splitlines():
                        self._say(f"info string {line}")
        return BestMove(legal[0])

    def _decide(self, job: Job, legal: list[chess.Move]) -> BestMove:
        options, evaluator = job.options, self.evaluator
        assert evaluator is not None, "no evaluator was loaded"
        wanted = self._wanted(job)
        allowed = [move for move in legal if move in wanted] or legal
        if options.policy:
            known = known_of(evaluator, job.board, job.go.limits(job.board.turn == chess.WHITE))
            return self._by_policy(job, evaluator, allowed, options.temperature, known)
        bounds = budget(job.go.limits(job.board.turn == chess.WHITE), options.overhead / 1000)
        search = self._prepared(job)
        if bounds.hard is not None and not job.pondering:
            left = job.begun + bounds.hard - self._clock()
            if left < 2 * self._evaluation_seconds and not (len(allowed) == len(legal) and search.root(0).simulations):
                in_time = left > self._evaluation_seconds
                return self._by_policy(job, evaluator if in_time else handwritten.evaluate, allowed)
        return self._by_search(job, search, bounds, allowed if len(allowed) < len(legal) else None)

    def _wanted(self, job: Job) -> set[chess.Move]:
        moves = set()
        for word in job.go.searchmoves:
            try:
                moves.add(job.board.parse_uci(word.lower()))
            except ValueError:
                self._say(f"info string searchmoves: {shown(word)} is not legal here")
        return moves

    def _by_hand(self, job: Job, legal: list[chess.Move]) -> BestMove:
        return self._by_policy(job, handwritten.evaluate, legal)

    def _by_policy(
        self,
        job: Job,
        evaluator: Evaluator,
        among: list[chess.Move],
        temperature: float = 0.0,
        told: Mapping[str, NDArray[np.integer]] | None = None,
    ) -> BestMove:
        """Play a move of an evaluator's policy, which is `told` the game where it is to play like people."""
        seen = policy_move(evaluator, job.board, among, temperature=temperature, seed=job.options.seed, told=told)
        wdl = f" wdl {permille(seen.value, seen.draw)}" if job.options.show_wdl else ""
        cost = effort(1, self._clock() - job.begun)
        self._say(
            f"info depth 1 seldepth 1 multipv 1 score {score(seen.value, 0)}{wdl} {cost} hashfull 0 pv {seen.move.uci()}"
        )
        return BestMove(seen.move)

    def _prepared(self, job: Job) -> Search:
        """Return a search whose root is the job's position: the last tree, advanced, where the game went on from it."""
        wanted = job.options.search()
        search = self._search
        if search is None or self._made != wanted:
            search = self._made_anew(job.options, wanted)
        if search.seed != job.options.seed:
            search.seed, self._history = job.options.seed, None
        new_moves = job.history.moves_since(self._history) if self._history is not None else None
        if new_moves is None:
            search.start(0, *position_and_history(job.board))
        else:
            turn = job.board.turn if len(new_moves) % 2 == 0 else not job.board.turn
            for move in new_moves:
                search.play(0, label_of(move, turn), move.promotion or 0)
                turn = not turn
        self._history = job.history
        return search

    def _made_anew(self, options: Options, wanted: SearchConfig) -> Search:
        assert self.evaluator is not None
        self._search = self._made = self._history = None  # its memory may be needed
        try:
            self._search = Search(self.evaluator, wanted, seed=options.seed)
        except MemoryError:
            self._say(f"info string no room for a Hash of {options.hash} MB; searching with the default one")
            self._search = Search(self.evaluator, replace(wanted, nodes=Options().search().nodes), seed=options.seed)
        self._made = wanted
        return self._search

    def _leaves(self, job: Job, bounds: Budget) -> int:
        """Return how many leaves go to the evaluator at once: one where simulations are counted or a round is a long time."""
        if job.go.nodes is not None or (job.options.simulations and not job.go.infinite):
            return 1
        if bounds.hard is None or job.pondering:
            return job.options.leaves
        rounds = (bounds.soft or 0.0) / max(
            self._evaluation_seconds, 1e-6
        )  # most moves end there, not at the hard bound
        return min(max(int(rounds / ROUNDS_WANTED), 1), job.options.leaves)

    def _by_search(self, job: Job, search: Search, bounds: Budget, allowed: list[chess.Move] | None) -> BestMove:
        turn, options = job.board.turn, job.options
        if allowed is not None:
            search.start(
                0, *position_and_history(job.board)
            )  # a tree of all moves answers no question about some of them
        before = search.root(0).simulations
        refused = search.refused(0)
        names = None if allowed is None else [(label_of(move, turn), move.promotion or 0) for move in allowed]

        def tell(best: int | None = None) -> None:
            nonlocal refused
            if search.refused(0) > refused:
                self._say(f"info string Hash of {options.hash} MB is full: the tree grows no more")
                refused = MOST_SIMULATIONS  # reported once
            root = search.root(0)
            chosen = _index_of(root, *(int(part[0]) for part in search.choose())) if best is None else best
            cost = effort(max(root.simulations - before, 0), self._clock() - job.begun)
            order = ranked(root, chosen)[: options.multipv]
            for line in info_lines(root, order, line_of, cost, show_wdl=options.show_wdl):
                self._say(line)

        def line_of(index: int) -> list[str]:
            return moves_of(search.line(0, index), job.board)

        leaves = self._leaves(job, bounds)
        usual = self._evaluation_seconds * (1 + leaves)
        timer = RoundTimer(
            job.begun, min(self._longest_round, usual)
        )  # one slow round must not shorten the moves to come
        timer.start(self._clock())
        choices = len(allowed) if allowed is not None else job.board.legal_moves.count()
        stop_condition = StopCondition(job, search, bounds, timer, choices, before, tell, self._clock)
        self._run(job, search, stop_condition, names, leaves)
        self._longest_round = timer.longest_round
        labels, promotions = search.choose(temperature=options.temperature)
        chosen = _index_of(search.root(0), int(labels[0]), int(promotions[0]))
        tell(chosen)
        line = [
            move_of(*move, turn if place == 0 else not turn) for place, move in enumerate(search.line(0, chosen)[:2])
        ]
        if allowed is not None:
            self.forget()  # a tree that knows some of the moves only
        return BestMove(*line)

    def _run(
        self,
        job: Job,
        search: Search,
        stop_condition: StopCondition,
        allowed: list[tuple[int, int]] | None,
        leaves: int,
    ) -> None:
        """Search until the stop condition holds, the simulations are done or the root is proven."""
        bounds = [MOST_SIMULATIONS - search.root(0).simulations]
        if job.go.nodes is not None:
            bounds.append(max(job.go.nodes, 1))
        if job.options.simulations and not job.go.infinite:
            bounds.append(job.options.simulations)
        left = max(min(bounds), 1)
        if stop_condition():  # stopped before it began, or the kept tree is enough for the time there is
            left = 0 if search.root(0).simulations else 1
        while left:
            asked, before = min(left, CHUNK if allowed is None else MOST_NARROWED), search.simulations
            search.run(simulations=asked, leaves=leaves, allowed=allowed, stop=stop_condition)
            done = search.simulations - before
            left -= done
            if done < asked or stop_condition() or allowed:
                return

    def _count(self, job: Job, depth: int) -> None:
        """Count the leaves of the move tree below each move, as Stockfish shows it."""
        total, board = 0, job.board
        for move in list(board.legal_moves):
            if job.stopped:
                break
            board.push(move)
            leaves = int(perft(from_board(board), depth - 1)) if depth > 1 else 1
            board.pop()
            total += leaves
            self._say(f"{move.uci()}: {leaves}")
        self._say(f"\nNodes searched: {total}\n")


def warm_up(evaluator: Evaluator) -> None:
    """Load every kernel that a move may need; compile those that this machine has never run."""
    board = chess.Board()
    search = Search(evaluator, SearchConfig(nodes=1024, leaves=2))
    search.start(0, *position_and_history(board))
    search.run(
        simulations=4
    )  # so that two rows are asked at once: uniform's answer of one row is another kind of array
    search.root(0), search.line(0), search.refused(0)
    labels, promotions = search.choose(temperature=0.0)
    search.play(0, int(labels[0]), int(promotions[0]))
    policy_move(handwritten.evaluate, board, list(board.legal_moves))


def _index_of(root: Root, label: int, promotion: int) -> int:
    """Return the index of a move among a root's."""
    for index, move in enumerate(zip(root.labels.tolist(), root.promotions.tolist(), strict=True)):
        if move == (label, promotion):
            return index
    raise AssertionError("the search chose no move of its root")
