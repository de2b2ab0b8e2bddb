"""Choose moves for UCI, matches, the browser board and the Python API.

    Request -> Player.play -> Play
      policy   one evaluation with all columns that the evaluator reads (policy.py)
      human    the policy, corrected by a small search (engine/search/human.py)
      search   a search that keeps its tree during the game

On a clock, each part is started only if it fits in the remaining time (clock.py).

Axes: B boards, A labels, N slots, W outcomes.
"""

import gc
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import chess
import numpy as np
from numpy.typing import NDArray

from engine.encoding.planes import label_from_move, planes_of
from engine.evaluation import handwritten
from engine.evaluation.evaluator import Evaluator
from engine.player.clock import MAX_SIMULATIONS, Budget, Limits, MoveControl, MoveTimer, Timings
from engine.player.lines import Line, Play, read_play
from engine.player.policy import Answer, Conditions, evaluate, make_policy
from engine.search import Search, SearchConfig, human
from engine.search.chess_rules import position_and_history

MAX_RESTRICTED_SIMULATIONS = 1_000_000
"""Maximum number of simulations of a search restricted to some moves, whose tree is not kept."""
MAX_CORRECTION_SIMULATIONS = 100_000
"""Maximum number of simulations that correct a policy, since their tree is allocated in advance."""
SMALL_TREE_NODES = 100_000
"""Number of nodes of a tree if there is not enough memory for a larger one."""
MIN_CORRECTION_SHARE = 0.5
"""Minimum share of a correction's simulations that must fit in the time; otherwise the policy plays
alone."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Style:
    """How a player chooses its moves: by its policy, or by a search."""

    search: SearchConfig | None = None
    """Settings of the search for the best move; None plays by the policy."""
    correction: human.Correction | None = None
    """Weights with which a search corrects the policy, by the mover's rating (human search)."""
    book: Mapping[str, chess.Move] = field(default_factory=dict)
    """Moves that are played instead of the policy's, by EPD of the position."""
    simulations: int = 0
    """Simulations that correct the policy; 0 for those with which `correction` was fitted."""
    temperature: float = 0.0
    """0 plays the best move; 1 samples in proportion to the policy, or to the search's visits."""
    seed: int = 0
    """Random seed of searches and sampled moves."""
    evaluates_root: bool = False
    """Whether the root of a new tree is evaluated with all columns, not by its planes alone."""
    overhead: float = 0.0
    """Seconds lost outside the player per timed move."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """A request for a move in a position."""

    board: chess.Board
    """The game so far, with its moves; the player does not change it."""
    conditions: Conditions = field(default_factory=Conditions)
    limits: Limits = field(default_factory=Limits)
    """Time limits; `play_all` accepts them only for a single request."""
    allowed: Sequence[chess.Move] = ()
    """Legal moves to choose from; empty for all."""
    simulations: int = 0
    """Maximum simulations; 0 for as many as time allows or, without a time limit, the style's."""
    leaves: int = 0
    """Leaves per batch; 0 for as many as time and style allow."""
    lines: int = 1
    """Number of moves for which variations are returned."""
    slot: int = 0
    """Index of the game's tree in the player."""
    game: int = 0
    """Game number; with the seed, it determines sampled moves and noise."""
    random: np.random.Generator | None = None
    """Random generator for sampling from a policy; by default, seed, game and ply determine it."""


class Player:
    """Player that chooses moves with an evaluator and keeps its search trees; not thread-safe."""

    def __init__(
        self,
        evaluator: Evaluator,
        style: Style | None = None,
        *,
        searched: Evaluator | None = None,
        games: int = 1,
        double_single_rows: bool = False,
        clock: Callable[[], float] = time.monotonic,
        note: Callable[[str], None] | None = None,
    ) -> None:
        """Create a player of `games` games; `style` may be replaced between moves.

        `searched` evaluates nodes below the root; it may be a faster export of the same network.
        With `double_single_rows`, a single row is evaluated as two, so that a game does not depend
        on other games: the last bits of a network's output differ between one row and several.
        `note` gets messages for the user.
        """
        self.evaluator = evaluator
        self.style = style or Style()
        self.timings = Timings(clock)
        self._games, self._double_single_rows = games, double_single_rows
        self._root = self._time_evaluator(evaluator)
        self._searched = self._time_evaluator(searched or evaluator)
        self._note = note or (lambda text: None)
        self._search: Search | None = None
        self._config: SearchConfig | None = None
        self._played: dict[int, tuple[str, int, list[chess.Move]]] = {}
        """First FEN, number, and moves up to the root of the tree, of the game in each slot."""

    def prepare(self) -> None:
        """Load all kernels and measure the evaluator's speed, before a game on a clock."""
        warm_up(self.evaluator)
        gc.collect()
        gc.freeze()  # otherwise, a full garbage collection would take 50 ms of a move
        self.timings.measure(self.evaluator, planes_of([chess.Board()]))

    def forget(self) -> None:
        """Start new trees at the next moves, because new games begin."""
        self._played.clear()

    def reset(self) -> None:
        """Free the trees, for example after an error."""
        self._search = self._config = None
        self.forget()

    def play(self, request: Request, control: MoveControl | None = None) -> Play:
        """Choose a move in a position with legal moves; `control` can stop the search."""
        return self.play_all([request], control)[0]

    def play_all(
        self, requests: Sequence[Request], control: MoveControl | None = None
    ) -> list[Play]:
        """Choose a move for each request; positions are evaluated in one batch."""
        control = control or MoveControl(self.timings.clock())
        limits = [request.limits for request in requests]
        assert len(limits) == 1 or not any(limit.is_timed for limit in limits), (
            "time limits need one game"
        )
        ply = requests[0].board.ply()
        budget = self.timings.make_budget(limits[0], ply, self.style.overhead)
        if self.style.search is None:
            plays = self._play_by_policy(requests, budget, control)
        else:
            plays = self._play_searches(requests, self.style.search, budget, control)
        self.timings.record_move(limits[0], ply + 2, control)
        return plays

    def _time_evaluator(self, evaluator: Evaluator) -> Evaluator:
        """Wrap an evaluator to record its durations and, if configured, to double single rows."""
        network: Any = evaluator
        # `measured` does not refer to self: a reference cycle would keep the trees in memory
        timings, doubles = self.timings, self._double_single_rows

        def measured(planes_BP: NDArray[np.uint64], columns: Any = None) -> Answer:
            start_time, rows = timings.clock(), len(planes_BP)
            if doubles and rows == 1:
                planes_BP = np.repeat(planes_BP, 2, axis=0)
                columns = columns and {
                    name: np.repeat(values, 2, 0) for name, values in columns.items()
                }
            answer = network(planes_BP, columns) if columns else evaluator(planes_BP)
            timings.observe(rows, timings.clock() - start_time)
            return answer[0][:rows], answer[1][:rows]

        measured.columns = getattr(evaluator, "columns", {})  # type: ignore[attr-defined]
        return measured

    def _play_by_policy(
        self, requests: Sequence[Request], budget: Budget, control: MoveControl
    ) -> list[Play]:
        """Play by the policy, corrected by a search if style and time allow it."""
        style = self.style
        if self.timings.seconds_until(budget.hard, control) <= self.timings.evaluation_seconds:
            return self._play_handwritten(requests)
        answer = self._evaluate(requests, self._root)
        if style.correction is None:
            return self._play_answers(requests, answer, style.temperature)
        correction = style.correction
        wanted = min(style.simulations or correction.simulations, MAX_CORRECTION_SIMULATIONS)
        wanted = min(wanted, requests[0].simulations or wanted)
        left = self.timings.seconds_until(budget.soft, control)
        if self.timings.evaluation_seconds * MIN_CORRECTION_SHARE * wanted > left:
            return self._play_answers(requests, answer, style.temperature)
        roots = [
            human.HumanRoot(*position_and_history(request.board), logits_A, wdl_W)
            for request, logits_A, wdl_W in zip(requests, *answer, strict=True)
        ]
        search = Search(self._searched, human.human_config(wanted), games=len(roots))
        exact = Budget(budget.soft, budget.soft, is_exact=True)
        timer = MoveTimer(self.timings, search, 0, exact, control, choices=2, leaves=1)
        results = human.search_roots(search, roots, wanted, timer)
        ratings_B = np.array([request.conditions.rating or 0 for request in requests])
        logits_BA = human.correct_logits(roots, results, *correction.interpolate(ratings_B))
        done = [root.simulations if timer.is_over else wanted for root in results]
        return self._play_answers(requests, (logits_BA, answer[1]), style.temperature, done)

    def _play_handwritten(self, requests: Sequence[Request]) -> list[Play]:
        """Play by the hand-written evaluator, because there is no time for the player's own."""
        self.timings.decay_estimates()
        return self._play_answers(requests, self._evaluate(requests, handwritten.evaluate), 0.0)

    def _evaluate(self, requests: Sequence[Request], evaluator: Evaluator) -> Answer:
        boards = [request.board for request in requests]
        return evaluate(evaluator, boards, [request.conditions for request in requests])

    def _play_answers(
        self,
        requests: Sequence[Request],
        answer: tuple[NDArray[np.floating], NDArray[np.float32]],
        temperature: float,
        done: Sequence[int] | None = None,
    ) -> list[Play]:
        """Choose moves by logits or from the book; `done` has each one's number of simulations."""
        plays = []
        for row, (request, logits_A, wdl_W) in enumerate(zip(requests, *answer, strict=True)):
            policy = make_policy(request.board, logits_A, request.allowed)
            seed = (self.style.seed, request.game, request.board.ply())
            chosen = policy.pick(temperature, request.random or np.random.default_rng(seed))
            book_move = self.style.book.get(request.board.epd()) if self.style.book else None
            if book_move in policy.moves:
                chosen = policy.moves.index(book_move)
            win, draw, loss = (float(share) for share in wdl_W)
            shares, lines = policy.shares().tolist(), []
            for index in (chosen, *(other for other in policy.rank_moves() if other != chosen)):
                move = policy.moves[index]
                lines.append(Line(move, win - loss, draw, share=shares[index], variation=(move,)))
            simulations = done[row] if done else 0
            plays.append(Play(tuple(lines), win - loss, (win, draw, loss), simulations))
        return plays

    def _play_searches(
        self,
        requests: Sequence[Request],
        config: SearchConfig,
        budget: Budget,
        control: MoveControl,
    ) -> list[Play]:
        """Search several positions together, or one within its limits, if there is time for it."""
        search = self._search if self._config == config else None
        search = search or self._make_search(config)
        if search.seed != self.style.seed:
            search.seed = self.style.seed
            self.forget()
        for request in requests:
            self._advance(search, request)
        if len(requests) > 1:
            search.run(np.array([request.slot for request in requests], dtype=np.int64))
        else:
            request = requests[0]
            is_new_tree = search.root(request.slot).simulations == 0 or request.allowed
            left = self.timings.seconds_until(budget.hard, control)
            # a new tree needs two evaluations: a root and a leaf
            if is_new_tree and left < 2 * self.timings.evaluation_seconds:
                if left <= self.timings.evaluation_seconds:
                    return self._play_handwritten(requests)
                return self._play_answers(requests, self._evaluate(requests, self._root), 0.0)
            return [self._search_one(search, request, config, budget, control)]
        return [self._read_play(search, request, 0, self.style.temperature) for request in requests]

    def _make_search(self, config: SearchConfig) -> Search:
        """Allocate trees, or smaller ones if there is not enough memory."""
        self.reset()  # the new trees may need the memory of the old ones
        try:
            search = Search(self._searched, config, games=self._games, seed=self.style.seed)
        except MemoryError:
            self._note(
                f"not enough memory for trees of {config.capacity} positions: using smaller ones"
            )
            small = replace(config, nodes=min(config.capacity, SMALL_TREE_NODES))
            search = Search(self._searched, small, games=self._games, seed=self.style.seed)
        self._search, self._config = search, config
        return search

    def _advance(self, search: Search, request: Request) -> None:
        """Advance a slot's tree to the requested position, or start a new tree."""
        board, slot = request.board, request.slot
        start, moves = board.root().fen(), list(board.move_stack)
        tree_start, tree_game, tree_moves = self._played.get(slot, ("", 0, []))
        is_same_game = (tree_start, tree_game) == (start, request.game)
        if not is_same_game or moves[: len(tree_moves)] != tree_moves:
            answer = None
            if self.style.evaluates_root:
                logits_BA, wdl_BW = self._evaluate([request], self._root)
                answer = logits_BA[0], wdl_BW[0]
            search.start(slot, *position_and_history(board), game=request.game, answer=answer)
        else:
            new_moves = moves[len(tree_moves) :]
            turn = board.turn if len(new_moves) % 2 == 0 else not board.turn
            for move in new_moves:
                search.play(slot, label_from_move(move, turn), move.promotion or 0)
                turn = not turn
        self._played[slot] = start, request.game, moves

    def _search_one(
        self,
        search: Search,
        request: Request,
        config: SearchConfig,
        budget: Budget,
        control: MoveControl,
    ) -> Play:
        """Search one position until its limits or the caller stop it."""
        slot, board, allowed = request.slot, request.board, request.allowed
        if allowed:  # the values of the kept tree include the excluded moves
            search.start(slot, *position_and_history(board), game=request.game)
        before = search.root(slot).simulations
        leaves = request.leaves or config.leaves
        if budget.hard is not None and not control.is_clock_paused and not request.leaves:
            leaves = self.timings.choose_leaves(budget, config.leaves)
        choices = len(allowed) or board.legal_moves.count()
        timer = MoveTimer(
            self.timings, search, slot, budget, control, choices=choices, leaves=leaves
        )

        def is_over() -> bool:
            return timer() or control.end_round(
                lambda: self._read_play(search, request, before, 0.0)
            )

        default = MAX_SIMULATIONS if request.limits.is_timed else config.simulations
        maximum = MAX_RESTRICTED_SIMULATIONS if allowed else max(MAX_SIMULATIONS - before, 1)
        wanted = min(request.simulations or default, maximum)
        if timer():  # a tree needs at least one simulation
            wanted = int(before == 0)
        if wanted:
            pairs = [(label_from_move(move, board.turn), move.promotion or 0) for move in allowed]
            search.run(
                np.array([slot], dtype=np.int64),
                simulations=wanted,
                leaves=leaves,
                allowed=pairs or None,
                stop=is_over,
            )
        play = self._read_play(search, request, before, self.style.temperature)
        if allowed:
            self._played.pop(slot, None)
        return play

    def _read_play(self, search: Search, request: Request, before: int, temperature: float) -> Play:
        """Return the current result of a search; the move chosen at `temperature` comes first."""
        slots_N = np.array([request.slot], dtype=np.int64)
        labels_N, promotions_N = search.choose(slots_N, temperature=temperature)
        chosen = int(labels_N[0]), int(promotions_N[0])
        lines, slot = request.lines, request.slot
        return read_play(search, request.board, lines, slot=slot, before=before, chosen=chosen)


def warm_up(evaluator: Evaluator) -> None:
    """Load every kernel that a move may need, and compile those that are not cached."""
    player = Player(evaluator, Style(search=SearchConfig(nodes=1024, simulations=4)))
    board = chess.Board()
    for _ in range(2):  # the second move advances the tree
        board.push(player.play(Request(board=board)).move)
    player.style = Style()
    player.play(Request(board=board))
