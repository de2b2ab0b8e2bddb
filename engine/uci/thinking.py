"""From a `go` to a move: the tree kept between moves, the search within its limits, and simpler moves where time is short.

All of it runs in the thinking thread. An error here must not lose the game: it is reported, and a simpler move is played.
"""

import gc
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import replace
from math import inf

import chess
import numpy as np
from numpy.typing import NDArray

from engine.encoding.planes import label_of
from engine.evaluation import handwritten
from engine.evaluation.evaluator import Evaluator
from engine.evaluation.policy_move import (
    PolicyMove,
    choose_by_policy,
    evaluate_boards,
    known_columns,
    pick_moves,
)
from engine.search import Search, SearchConfig
from engine.search.chess_rules import position_and_history
from engine.search.clock import MOST_SIMULATIONS, Budget, Limits, MoveTimer, Pace, divide_clock, run_until, warm_up
from engine.search.human import Correction, correct_policies
from engine.uci.commands import quote
from engine.uci.info import format_effort, format_info, format_score, format_wdl, write_moves
from engine.uci.job import Job, StopCondition
from engine.uci.options import Options

MOST_RESTRICTED = 1_000_000
"""Simulations of a search of some moves only, whose tree is not kept."""
MOST_HUMAN = 100_000
"""Simulations of a human move at most, whose tree is allocated at once."""
NO_MOVE = "bestmove (none)"
"""Where the game is over; Stockfish's words."""


class Thinker:
    """The player: an evaluator, its pace, a search tree, and the game that the tree's root belongs to."""

    def __init__(self, say: Callable[[str], None], *, clock: Callable[[], float] = time.monotonic) -> None:
        """Write by `say`, a line at a time."""
        self.evaluator: Evaluator | None = None
        self.debug = False
        self._say, self._clock = say, clock
        self._pace = Pace(clock)
        self._search: Search | None = None
        self._config: SearchConfig | None = None
        self._game: tuple[str, list[chess.Move]] | None = None
        """FEN of the first position, and the moves up to the tree's root."""

    def use(self, evaluator: Evaluator) -> None:
        """Play with an evaluator from now on, and measure its pace."""
        warm_up(evaluator)
        gc.freeze()  # objects of libraries stay; scanning them again would cost a fast move 50 ms
        self.evaluator, self._config = evaluator, None
        self._pace.measure(evaluator)

    def forget(self) -> None:
        """Treat the next position as a new game's."""
        self._game = None

    def think(self, job: Job) -> None:
        """Answer a `go`."""
        legal = list(job.board.legal_moves)
        if legal:
            last = f"bestmove {' ponder '.join(self._answer(job, legal))}"
        else:
            self._say(f"info depth 0 score {'mate 0' if job.board.is_check() else 'cp 0'}")
            last = NO_MOVE
        job.wait()
        job.answered = True
        self._say(last)

    def _answer(self, job: Job, legal: list[chess.Move]) -> list[str]:
        """Return the move and, where it is known, the expected reply; after an error, which is reported, try a simpler way."""
        for way in (self._decide, self._play_handwritten):
            try:
                return way(job, legal)
            except Exception as error:  # noqa: BLE001 - a game in progress is worth more than a traceback
                self.forget()
                self._config = None
                self._say(
                    f"info string error, a simpler move is played: {type(error).__name__}: {quote(str(error), 300)}"
                )
                if self.debug:
                    for line in traceback.format_exc().splitlines():
                        self._say(f"info string {line}")
        return [legal[0].uci()]

    def _decide(self, job: Job, legal: list[chess.Move]) -> list[str]:
        """Choose between the policy's move and a search."""
        options, evaluator = job.options, self.evaluator
        assert evaluator is not None, "no evaluator was loaded"
        wanted = self._parse_searchmoves(job)
        allowed = [move for move in legal if move in wanted] or legal
        limits = job.go.limits(job.board.turn == chess.WHITE)
        if options.human is not None:
            return self._play_human(job, evaluator, allowed, limits)
        if options.style == "policy":
            columns = known_columns(evaluator, [job.board], **self._known_numbers(evaluator, limits, options.rating))
            return self._play_policy(job, evaluator, allowed, options.temperature, columns)
        budget = divide_clock(limits, options.overhead / 1000)
        search = self._prepare_search(job)
        restricted = len(allowed) < len(legal)
        if budget.hard is not None and not job.pondering and (restricted or not search.root(0).simulations):
            substitute = self._pace.substitute(evaluator, job.begun + budget.hard - self._clock())
            if substitute is not None:
                return self._play_policy(job, substitute, allowed)
        return self._play_search(job, search, budget, allowed, restricted)

    def _parse_searchmoves(self, job: Job) -> set[chess.Move]:
        moves = set()
        for word in job.go.searchmoves:
            try:
                moves.add(job.board.parse_uci(word.lower()))
            except ValueError:
                self._say(f"info string searchmoves: {quote(word)} is not legal here")
        return moves

    def _play_handwritten(self, job: Job, legal: list[chess.Move]) -> list[str]:
        return self._play_policy(job, handwritten.evaluate, legal)

    def _known_numbers(self, evaluator: Evaluator, limits: Limits, rating: int) -> dict[str, int]:
        """Return the mover's clock, where the GUI sends it, and the rating of both players: people's moves depend on them."""
        known: dict[str, int] = {}
        if limits.left is not None:
            known |= {
                "clock": min(max(int(limits.left), 0), 65534),
                "increment": min(max(int(limits.increment), 0), 254),
            }
        if rating:
            known |= {"elo": rating, "opponent_elo": rating}
            if "elo" not in getattr(evaluator, "columns", ()):
                self._say(f"info string Rating {rating} changes no probabilities: the network reads no ratings")
        return known

    def _play_human(self, job: Job, evaluator: Evaluator, allowed: list[chess.Move], limits: Limits) -> list[str]:
        """Draw a move of the policy for a rating, corrected by a search where the network was calibrated and time is left."""
        options = job.options
        assert options.human is not None
        aim, rating = options.human
        correction: Correction | None = getattr(evaluator, "corrections", {}).get(aim)
        columns = known_columns(evaluator, [job.board], **self._known_numbers(evaluator, limits, rating))
        if correction is None:
            self._say(
                "info string the policy alone is played: `fianchetto calibrate` fits human search to this network"
            )
            return self._play_policy(job, evaluator, allowed, 1.0, columns)
        simulations = min(options.simulations or correction.simulations, MOST_HUMAN, max(job.go.nodes or MOST_HUMAN, 1))
        budget = divide_clock(limits, options.overhead / 1000)
        left = inf if budget.hard is None or job.pondering else job.begun + budget.hard - self._clock()
        if self._pace.evaluation * (simulations + 1) > left:
            return self._play_policy(job, evaluator, allowed, 1.0, columns)
        answer = evaluate_boards(evaluator, [job.board], columns)
        corrected_1A = correct_policies(
            evaluator, [job.board], answer, [rating], correction, simulations, lambda: job.stopped
        )
        seeds = [(options.seed, job.board.ply())]
        played = pick_moves([job.board], corrected_1A, answer[1], seeds, temperature=1.0, allowed=allowed)[0]
        self._say_policy_move(job, played, simulations)
        return [played.move.uci()]

    def _play_policy(
        self,
        job: Job,
        evaluator: Evaluator,
        allowed: list[chess.Move],
        temperature: float = 0.0,
        columns: Mapping[str, NDArray[np.integer]] | None = None,
    ) -> list[str]:
        """Play a move of an evaluator's policy."""
        played = choose_by_policy(
            evaluator, [job.board], allowed, temperature=temperature, seed=job.options.seed, columns=columns
        )[0]
        self._say_policy_move(job, played, 1)
        return [played.move.uci()]

    def _say_policy_move(self, job: Job, played: PolicyMove, nodes: int) -> None:
        """Write the `info` line of a move of a policy, which took `nodes` evaluations."""
        wdl = f" wdl {format_wdl(played.value, played.draw)}" if job.options.show_wdl else ""
        cost = format_effort(nodes, self._clock() - job.begun)
        result = f"score {format_score(played.value, 0)}{wdl} {cost} hashfull 0 pv {played.move.uci()}"
        self._say(f"info depth 1 seldepth 1 multipv 1 {result}")

    def _prepare_search(self, job: Job) -> Search:
        """Return a search whose root is the job's position: the last tree, advanced, where the game went on from it."""
        config = job.options.search()
        search = self._search
        if search is None or self._config != config:
            search = self._make_search(job.options, config)
        if search.seed != job.options.seed:
            search.seed, self._game = job.options.seed, None
        moves = list(job.board.move_stack)
        start, known = self._game or ("", [])
        if start != job.start or moves[: len(known)] != known:
            search.start(0, *position_and_history(job.board))
        else:
            new_moves = moves[len(known) :]
            turn = job.board.turn if len(new_moves) % 2 == 0 else not job.board.turn
            for move in new_moves:
                search.play(0, label_of(move, turn), move.promotion or 0)
                turn = not turn
        self._game = job.start, moves
        return search

    def _make_search(self, options: Options, config: SearchConfig) -> Search:
        assert self.evaluator is not None
        self._search = self._config = self._game = None  # its memory may be needed
        try:
            self._search = Search(self.evaluator, config, seed=options.seed)
        except MemoryError:
            self._say(f"info string no room for a Hash of {options.hash} MB; searching with the default one")
            self._search = Search(self.evaluator, replace(config, nodes=Options().search().nodes), seed=options.seed)
        self._config = config
        return self._search

    def _play_search(
        self, job: Job, search: Search, budget: Budget, moves: list[chess.Move], restricted: bool
    ) -> list[str]:
        """Search `moves` within the limits of `go`, and return the best one."""
        turn, options = job.board.turn, job.options
        if restricted:  # a tree of all moves answers no question about some of them
            search.start(0, *position_and_history(job.board))
        before = search.root(0).simulations

        def report(temperature: float = 0.0) -> int:
            """Write the search's state, and return the index of the move that would be played."""
            root = search.root(0)
            labels, promotions = search.choose(temperature=temperature)
            chosen = root.index_of(int(labels[0]), int(promotions[0]))
            cost = format_effort(max(root.simulations - before, 0), self._clock() - job.begun)
            order = root.ranked(chosen)[: options.multipv]
            for line in format_info(root, order, line_of, cost, show_wdl=options.show_wdl):
                self._say(line)
            return chosen

        def line_of(index: int) -> list[str]:
            return write_moves(search.line(0, index), job.board)

        leaves = self._leaves(job, budget)
        timer = MoveTimer(self._pace, search, 0, budget, begun=job.begun, choices=len(moves), leaves=leaves)
        run_until(
            search,
            0,
            StopCondition(job, search, timer, report, self._clock()),
            simulations=_most_simulations(job, restricted),
            leaves=leaves,
            allowed=[(label_of(move, turn), move.promotion or 0) for move in moves] if restricted else None,
        )
        chosen = report(options.temperature)
        if restricted:
            self.forget()
        return write_moves(search.line(0, chosen)[:2], job.board)

    def _leaves(self, job: Job, budget: Budget) -> int:
        """Return how many leaves go to the evaluator at once: one where simulations are counted."""
        if job.go.nodes is not None or (job.options.simulations and not job.go.infinite):
            return 1
        if budget.hard is None or job.pondering:
            return job.options.leaves
        return self._pace.leaves(budget, job.options.leaves)


def _most_simulations(job: Job, restricted: bool) -> int:
    """Return the most simulations that `go` and the options allow."""
    bounds = [MOST_RESTRICTED if restricted else MOST_SIMULATIONS]
    if job.go.nodes is not None:
        bounds.append(max(job.go.nodes, 1))
    if job.options.simulations and not job.go.infinite:
        bounds.append(job.options.simulations)
    return min(bounds)
