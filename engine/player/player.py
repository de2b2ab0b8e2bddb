"""The player behind UCI, matches, the browser board and the Python API.

    Request -> Player.play -> Play
      policy   one evaluation with all columns that the evaluator reads: policy.py
      human    the policy, corrected by a small search: engine/search/human.py
      search   a search that keeps its tree during the game

On a clock, each part is started only if it fits in the remaining time: clock.py.

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

from engine.encoding.planes import label_of, planes_of
from engine.evaluation import handwritten
from engine.evaluation.evaluator import Evaluator
from engine.player.clock import MAX_SIMULATIONS, Budget, Limits, MoveControl, MoveTimer, Pace
from engine.player.lines import Line, Play, read_search
from engine.player.policy import Answer, Conditions, evaluate, policy_of
from engine.search import Search, SearchConfig, human
from engine.search.chess_rules import position_and_history

MAX_RESTRICTED_SIMULATIONS = 1_000_000
"""Maximum simulations of a search restricted to some moves; its tree is not kept."""
MAX_CORRECTION_SIMULATIONS = 100_000
"""Maximum number of simulations that correct a policy; the tree is allocated in advance."""
SMALL_TREE_NODES = 100_000
"""Number of nodes of a tree if there is not enough memory for a larger one."""
MIN_CORRECTION_SHARE = 0.5
"""Minimum share of a correction's simulations that must fit in the time; else the policy plays
uncorrected."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Style:
    """How a player chooses its moves: by its policy, or by a search."""

    search: SearchConfig | None = None
    """Settings of the search for the best move; None plays by the policy."""
    correction: human.Correction | None = None
    """Weights of a search that corrects the policy, by the mover's rating (human search)."""
    book: Mapping[str, chess.Move] = field(default_factory=dict)
    """Moves that a policy always plays, by EPD."""
    simulations: int = 0
    """Simulations that correct the policy; 0 for the number used in the correction's fit."""
    temperature: float = 0.0
    """0 plays the best move; 1 samples by the policy's probabilities, or the search's visits."""
    seed: int = 0
    """Random seed of searches and sampled moves."""
    evaluates_root: bool = False
    """Evaluate the root of a new tree with all columns; others by planes alone."""
    overhead: float = 0.0
    """Seconds lost outside the player per timed move."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """A request for a move in a position."""

    board: chess.Board
    """The game so far, with its moves; do not change it."""
    conditions: Conditions = field(default_factory=Conditions)
    limits: Limits = field(default_factory=Limits)
    """Time limits; allowed only for a single request."""
    allowed: Sequence[chess.Move] = ()
    """Legal moves to choose from; empty for all."""
    simulations: int = 0
    """Maximum simulations; 0 for as many as time allows, or without a time limit the style's."""
    leaves: int = 0
    """Leaves per batch; 0 for as many as time and style allow."""
    lines: int = 1
    """Number of moves for which variations are returned."""
    slot: int = 0
    """Index of the game's tree in the player."""
    game: int = 0
    """Game number; with the seed, it determines sampled moves and noise."""
    random: np.random.Generator | None = None
    """Random generator of a policy's sampled moves; replaces seed, game and ply."""


class Player:
    """Chooses moves with an evaluator, and keeps the trees of its games; not thread-safe."""

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
        """Create a player of `games` games; `style` may be changed between moves.

        `searched` evaluates nodes below the root, such as a faster export of the same network. With
        `double_single_rows`, a single row is evaluated as two: a network's last bits differ between
        one row and several, and a game must not depend on other games.
        """
        self.evaluator = evaluator
        self.style = style or Style()
        self.pace = Pace(clock)
        self._games, self._double_single_rows = games, double_single_rows
        self._root = self._meter(evaluator)
        self._searched = self._meter(searched or evaluator)
        self._note = note or (lambda text: None)
        self._search: Search | None = None
        self._config: SearchConfig | None = None
        self._played: dict[int, tuple[str, int, list[chess.Move]]] = {}
        """By slot: the game's first FEN, its number, and its moves up to the root of the tree."""

    def prepare(self) -> None:
        """Load all kernels and measure the speed, before a game on a clock."""
        warm_up(self.evaluator)
        gc.collect()
        gc.freeze()  # scanning the libraries' objects again would cost a fast move 50 ms
        self.pace.measure(self.evaluator, planes_of([chess.Board()]))

    def forget(self) -> None:
        """Start new trees at the next moves, as for new games."""
        self._played.clear()

    def reset(self) -> None:
        """Free the trees, after an error."""
        self._search = self._config = None
        self.forget()

    def play(self, request: Request, control: MoveControl | None = None) -> Play:
        """Return the move for a position with legal moves; `control` can stop the search."""
        return self.play_all([request], control)[0]

    def play_all(
        self, requests: Sequence[Request], control: MoveControl | None = None
    ) -> list[Play]:
        """Return a move for each request; positions are evaluated in one batch."""
        control = control or MoveControl(self.pace.clock())
        limits = [request.limits for request in requests]
        assert len(limits) == 1 or not any(one.is_timed for one in limits), "one game on a clock"
        ply = requests[0].board.ply()
        budget = self.pace.budget(limits[0], ply, self.style.overhead)
        if self.style.search is None:
            plays = self._play_policies(requests, budget, control)
        else:
            plays = self._play_searches(requests, self.style.search, budget, control)
        self.pace.end_move(limits[0], ply + 2, control)
        return plays

    def _meter(self, evaluator: Evaluator) -> Evaluator:
        """Wrap an evaluator to record its durations and, if configured, double single rows."""
        network: Any = evaluator
        # not self: a cycle would keep the trees in memory
        pace, doubles = self.pace, self._double_single_rows

        def measured(planes_BP: NDArray[np.uint64], columns: Any = None) -> Answer:
            begun, rows = pace.clock(), len(planes_BP)
            if doubles and rows == 1:
                planes_BP = np.repeat(planes_BP, 2, axis=0)
                columns = columns and {name: np.repeat(one, 2, 0) for name, one in columns.items()}
            answer = network(planes_BP, columns) if columns else evaluator(planes_BP)
            pace.observe(rows, pace.clock() - begun)
            return answer[0][:rows], answer[1][:rows]

        measured.columns = getattr(evaluator, "columns", {})  # type: ignore[attr-defined]
        return measured

    def _play_policies(
        self, requests: Sequence[Request], budget: Budget, control: MoveControl
    ) -> list[Play]:
        """Play by the policy, corrected by a search if style and time allow it."""
        style = self.style
        if self.pace.left(budget.hard, control) <= self.pace.evaluation:
            return self._play_handwritten(requests)
        answer = self._evaluate(requests, self._root)
        if style.correction is None:
            return self._play_answers(requests, answer, style.temperature)
        correction = style.correction
        wanted = min(style.simulations or correction.simulations, MAX_CORRECTION_SIMULATIONS)
        wanted = min(wanted, requests[0].simulations or wanted)
        left = self.pace.left(budget.soft, control)
        if self.pace.evaluation * MIN_CORRECTION_SHARE * wanted > left:
            return self._play_answers(requests, answer, style.temperature)
        rows = zip(requests, *answer, strict=True)
        roots = [human.HumanRoot(*position_and_history(row[0].board), *row[1:]) for row in rows]
        search = Search(self._searched, human.human_config(wanted), games=len(roots))
        exact = Budget(budget.soft, budget.soft, is_exact=True)
        timer = MoveTimer(self.pace, search, 0, exact, control, choices=2, leaves=1)
        found = human.search_roots(search, roots, wanted, timer)
        ratings_B = np.array([request.conditions.rating or 0 for request in requests])
        logits_BA = human.correct_logits(roots, found, *correction.interpolate(ratings_B))
        done = [root.simulations if timer.is_over else wanted for root in found]
        return self._play_answers(requests, (logits_BA, answer[1]), style.temperature, done)

    def _play_handwritten(self, requests: Sequence[Request]) -> list[Play]:
        """Play by the hand-written evaluator, if there is no time for another."""
        self.pace.forget_slowly()
        return self._play_answers(requests, self._evaluate(requests, handwritten.evaluate), 0.0)

    def _evaluate(self, requests: Sequence[Request], evaluator: Evaluator) -> Answer:
        """Evaluate the positions with all columns that the evaluator reads."""
        boards = [request.board for request in requests]
        return evaluate(evaluator, boards, [request.conditions for request in requests])

    def _play_answers(
        self,
        requests: Sequence[Request],
        answer: tuple[NDArray[np.floating], NDArray[np.float32]],
        temperature: float,
        done: Sequence[int] | None = None,
    ) -> list[Play]:
        """Choose a move by each policy; seed, game and ply determine sampled moves."""
        plays = []
        for row, (request, logits_A, wdl_W) in enumerate(zip(requests, *answer, strict=True)):
            policy = policy_of(request.board, logits_A, request.allowed)
            seed = (self.style.seed, request.game, request.board.ply())
            chosen = policy.pick(temperature, request.random or np.random.default_rng(seed))
            booked = self.style.book.get(request.board.epd()) if self.style.book else None
            if booked in policy.moves:
                chosen = policy.moves.index(booked)
            win, draw, loss = (float(share) for share in wdl_W)
            shares, lines = policy.shares().tolist(), []
            for index in (chosen, *(one for one in policy.ranked() if one != chosen)):
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
        """Search several positions together, or a single one within its limits."""
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
            first = search.root(request.slot).simulations == 0 or request.allowed
            left = self.pace.left(budget.hard, control)
            if (
                first and left < 2 * self.pace.evaluation
            ):  # not enough time to evaluate a root and a leaf
                if left <= self.pace.evaluation:
                    return self._play_handwritten(requests)
                return self._play_answers(requests, self._evaluate(requests, self._root), 0.0)
            return [self._search_one(search, request, config, budget, control)]
        return [self._look(search, request, 0, self.style.temperature) for request in requests]

    def _make_search(self, config: SearchConfig) -> Search:
        """Allocate the trees, or smaller ones if memory is short."""
        self.reset()  # the memory of the last trees may be needed
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
        """Advance a slot's tree to the request's position, or start a new tree."""
        board, slot = request.board, request.slot
        start, moves = board.root().fen(), list(board.move_stack)
        begun, game, known = self._played.get(slot, ("", 0, []))
        if (begun, game) != (start, request.game) or moves[: len(known)] != known:
            answer = None
            if self.style.evaluates_root:
                logits_BA, wdl_BW = self._evaluate([request], self._root)
                answer = logits_BA[0], wdl_BW[0]
            search.start(slot, *position_and_history(board), game=request.game, answer=answer)
        else:
            new_moves = moves[len(known) :]
            turn = board.turn if len(new_moves) % 2 == 0 else not board.turn
            for move in new_moves:
                search.play(slot, label_of(move, turn), move.promotion or 0)
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
        if allowed:  # the values of a tree of all moves include the moves to exclude
            search.start(slot, *position_and_history(board), game=request.game)
        before = search.root(slot).simulations
        leaves = request.leaves or config.leaves
        if budget.hard is not None and not control.is_clock_paused and not request.leaves:
            leaves = self.pace.leaves(budget, config.leaves)
        choices = len(allowed) or board.legal_moves.count()
        timer = MoveTimer(self.pace, search, slot, budget, control, choices=choices, leaves=leaves)

        def is_over() -> bool:
            return timer() or control.end_round(lambda: self._look(search, request, before, 0.0))

        usual = MAX_SIMULATIONS if request.limits.is_timed else config.simulations
        most = MAX_RESTRICTED_SIMULATIONS if allowed else max(MAX_SIMULATIONS - before, 1)
        wanted = min(request.simulations or usual, most)
        if timer():  # run at least one simulation
            wanted = int(before == 0)
        if wanted:
            pairs = [(label_of(move, board.turn), move.promotion or 0) for move in allowed]
            search.run(
                np.array([slot], dtype=np.int64),
                simulations=wanted,
                leaves=leaves,
                allowed=pairs or None,
                stop=is_over,
            )
        play = self._look(search, request, before, self.style.temperature)
        if allowed:
            self._played.pop(slot, None)
        return play

    def _look(self, search: Search, request: Request, before: int, temperature: float) -> Play:
        """Return a search's current result; the move chosen at `temperature` is listed first."""
        slots_N = np.array([request.slot], dtype=np.int64)
        labels_N, promotions_N = search.choose(slots_N, temperature=temperature)
        chosen = int(labels_N[0]), int(promotions_N[0])
        lines, slot = request.lines, request.slot
        return read_search(search, request.board, lines, slot=slot, before=before, chosen=chosen)


def warm_up(evaluator: Evaluator) -> None:
    """Load every kernel that a move may need, and compile those missing from the cache."""
    player = Player(evaluator, Style(search=SearchConfig(nodes=1024, simulations=4)))
    board = chess.Board()
    for _ in range(2):  # the second move advances the tree
        board.push(player.play(Request(board=board)).move)
    player.style = Style()
    player.play(Request(board=board))
