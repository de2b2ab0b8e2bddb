"""Batched search for self-play, matches and players, with one evaluator batch per round.

The search of a game depends only on the seed, the game's number and its tree. Other games do not
affect it, unless the evaluator's result for a position depends on the rest of the batch.

Axes: G slots, N slots of a call, P planes, A labels.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from engine.board.bitboard import U
from engine.board.position import Position
from engine.board.rng import seed_stream
from engine.board.rules import ONGOING
from engine.encoding.planes import LABELS, PLANES, LabelError
from engine.evaluation.evaluator import Evaluator
from engine.progress import Stop
from engine.search.chess_rules import examine, is_legal
from engine.search.config import SearchConfig, SearchError
from engine.search.puct import empty_round, expand_and_backup, select_leaves, undo_round
from engine.search.results import Root, principal_variation, read_root
from engine.search.root import advance, begin_run, choose_edge, choose_moves, expand_roots
from engine.search.tree import EDGE_DTYPE, MAX_HISTORY, empty_forest, reset_tree

_NO_RESTRICTION = np.zeros((0, 2), dtype=np.int64)
_NO_PATH = np.zeros(0, dtype=np.int32)
MAX_PLANNED_SIMULATIONS = 1 << 16
"""Maximum number of simulations in a plan of Sequential Halving."""


class Search:
    """Search trees of several games, in slots 0..games-1.

    Methods raise SearchError for invalid arguments or evaluations, LabelError for an illegal move.
    """

    def __init__(
        self,
        evaluator: Evaluator,
        config: SearchConfig | None = None,
        *,
        games: int = 1,
        seed: int = 0,
    ) -> None:
        if games < 1:
            raise SearchError(f"the number of games must be at least 1, not {games}")
        self.evaluator = evaluator
        self.config = config or SearchConfig()
        """Settings of the search; do not replace them, since the arrays are allocated for them."""
        self.games = games
        self.seed = seed
        self.simulations = self.evaluations = self.batches = 0
        self._params = self.config.params()
        plan = (
            min(self.config.simulations * 2, MAX_PLANNED_SIMULATIONS) if self._params.gumbel else 0
        )
        self._forest = empty_forest(games, self.config.capacity, plan)
        self._scratch = (
            np.zeros(self.config.capacity, dtype=np.int32),
            np.zeros(self._forest.edges.shape[1], dtype=EDGE_DTYPE),
        )
        self._round = empty_round(games * self.config.leaves)
        self._zero_logits = np.zeros(LABELS, dtype=np.float32)
        self._zero_logits.flags.writeable = False  # read-only like the results in `_evaluate`
        self._planes = np.empty(PLANES, dtype=np.uint64)
        self._unsearched = np.ones(games, dtype=np.bool_)
        self._started = np.zeros(games, dtype=np.bool_)
        self._restricted = np.zeros(games, dtype=np.bool_)

    def start(
        self,
        slot: int,
        position: Position,
        history: Sequence[int] = (),
        *,
        game: int | None = None,
        answer: tuple[NDArray[np.float32], NDArray[np.float32]] | None = None,
    ) -> None:
        """Begin a game's tree at a position (uint64[16]).

        `history` has the keys of the positions since the last capture or pawn move, oldest first.
        `game` (by default the slot) and the search's seed determine the random numbers. `answer`,
        logits float32[A] and win, draw, loss float32[3], replaces the evaluator's result for this
        position.
        """
        past = list(history)[-MAX_HISTORY:]
        self._forest.roots[slot] = position
        self._forest.history[slot, : len(past)] = past
        self._forest.slots["history_length"][slot] = len(past)
        number = slot if game is None else game
        seed_stream(self._forest.rng[slot], U(self.seed % 2**64), U(number % 2**64))
        reset_tree(self._forest, slot)
        self._unsearched[slot] = self._started[slot] = True
        self._restricted[slot] = False
        if answer is not None:
            slots_N = np.array([slot], dtype=np.int64)
            logits_BA, wdl_BW = (np.array(part, np.float32)[None] for part in answer)
            if expand_roots(self._forest, slots_N, self._round, self._zero_logits, _NO_RESTRICTION):
                self._evaluate(1, lambda planes_BP: (logits_BA, wdl_BW))

    def position(self, slot: int) -> Position:
        """Return a copy of a slot's root position, uint64[16]."""
        return np.array(self._forest.roots[slot])

    def play(self, slot: int, label: int, promotion: int) -> bool:
        """Play a move and keep its subtree, if any; return whether there was a subtree.

        Raises LabelError for an illegal move.
        """
        if not is_legal(self._forest.roots[slot], label, promotion):
            raise LabelError(f"label {label} with promotion {promotion} is not a legal move here")
        self._unsearched[slot], self._restricted[slot] = True, False
        return bool(advance(self._forest, slot, label, promotion, self._scratch))

    def run(
        self,
        slots: NDArray[np.int64] | None = None,
        *,
        simulations: int | NDArray[np.int64] | None = None,
        leaves: int | None = None,
        noise: bool | NDArray[np.bool_] = True,
        allowed: Sequence[tuple[int, int]] | None = None,
        stop: Stop | None = None,
    ) -> None:
        """Search the slots (all by default).

        Adds `simulations` to each root: a number, or int64[N], by default that of the
        configuration; 0 only expands the roots. A search ends early if its root is decided, or if
        `stop()`, called after every round, returns True. `leaves` can lower the configuration's
        value for this run. `noise`, which may be bool[N], adds Dirichlet or Gumbel noise to the
        roots. `allowed` restricts the roots to these (label, promotion); it resets their trees, now
        and at the next run.

        If the evaluator raises, or returns NaN or infinity (SearchError), the round is undone and
        the exception is raised. The next run continues after the last finished round.
        """
        slots_N = self._check_slots(slots)
        leaves = self.config.leaves if leaves is None else leaves
        if not 1 <= leaves <= self.config.leaves:
            raise SearchError(f"leaves must be between 1 and {self.config.leaves}, not {leaves}")
        simulations = self.config.simulations if simulations is None else simulations
        wanted_N = np.full(len(slots_N), simulations, dtype=np.int64)
        if (wanted_N < 0).any():
            raise SearchError(f"simulations must be 0 or more, not {wanted_N.min()}")
        noise_N = np.full(len(slots_N), noise, dtype=np.bool_)
        moves = np.array(allowed or [], dtype=np.int64).reshape(-1, 2)
        self._reset_restricted(slots_N, moves)
        done_N = np.zeros(len(slots_N), dtype=np.int64)
        rows = expand_roots(self._forest, slots_N, self._round, self._zero_logits, moves)
        if rows:
            self._evaluate(rows, self.evaluator)
        begin_run(self._forest, slots_N, wanted_N, noise_N, moves, self._unsearched, self._params)
        while True:
            rows = select_leaves(
                self._forest, slots_N, wanted_N, done_N, leaves, self._params, self._round
            )
            if rows:
                self._evaluate(rows, self.evaluator)
            elif not (done_N < wanted_N).any():
                break
            if stop is not None and stop():
                break
        self.simulations += int(done_N.sum())

    def _check_slots(self, slots: NDArray[np.int64] | None) -> NDArray[np.int64]:
        """Return the slots of a call; raise SearchError for duplicates and slots without a game."""
        all_slots = np.arange(self.games, dtype=np.int64)
        slots_N = all_slots if slots is None else np.asarray(slots, dtype=np.int64)
        if not np.isin(slots_N, all_slots).all() or len(np.unique(slots_N)) < len(slots_N):
            raise SearchError(
                f"slots must be distinct numbers from 0 to {self.games - 1}, not {slots_N}"
            )
        if not self._started[slots_N].all():
            raise SearchError("a slot has no game: call `start` first")
        return slots_N

    def _reset_restricted(self, slots_N: NDArray[np.int64], moves: NDArray[np.int64]) -> None:
        """Reset the trees whose root moves are restricted, in the last run or in this one."""
        restricts = len(moves) > 0
        for slot in slots_N if restricts else slots_N[self._restricted[slots_N]]:
            reset_tree(self._forest, slot)
            self._unsearched[slot] = True
        self._restricted[slots_N] = restricts

    def _evaluate(self, rows: int, evaluator: Evaluator) -> None:
        """Evaluate, expand and back up a round's leaves; undo the round if that fails."""
        done = 0
        try:
            logits, wdl = evaluator(self._round.planes[:rows])
            if logits.shape != (rows, LABELS) or wdl.shape != (rows, 3):
                raise SearchError(
                    f"the evaluator returned shapes {logits.shape} and {wdl.shape}, but must "
                    f"return ({rows}, {LABELS}) and ({rows}, 3)"
                )
            logits, wdl = logits.view(), wdl.view()
            # some evaluators return read-only arrays: make all read-only, to compile one kernel
            logits.flags.writeable = wdl.flags.writeable = False
            done = expand_and_backup(self._forest, rows, self._round, logits, wdl, self._params)
            if done < rows:
                raise SearchError(
                    "the evaluator returned NaN or infinity: the network file may be damaged"
                )
        finally:
            if done < rows:
                undo_round(self._forest, done, rows, self._round)
        self.evaluations += rows
        self.batches += 1

    def choose(
        self,
        slots: NDArray[np.int64] | None = None,
        *,
        temperature: float | NDArray[np.float64] = 0.0,
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Choose a move for each slot: labels int64[N], promotions int64[N]; -1, 0 for none.

        The fastest proven win is always chosen, and a proven loss only if all moves lose.
        Otherwise, temperature 0 chooses the most visited move (gumbel: Sequential Halving's
        winner). Above 0, the move is sampled in proportion to its visits (gumbel: its improved
        policy) to the power of 1 / temperature, which may be float64[N].
        """
        slots_N = self._check_slots(slots)
        temperatures = np.full(len(slots_N), temperature, dtype=np.float64)
        out = np.empty((len(slots_N), 2), dtype=np.int64)
        choose_moves(self._forest, slots_N, temperatures, self._params, out)
        return out[:, 0].copy(), out[:, 1].copy()

    def root(self, slot: int = 0) -> Root:
        """Return the search's result at a slot's root."""
        return read_root(self._forest, slot, self._params)

    def line(self, slot: int = 0, first: int | None = None) -> list[tuple[int, int]]:
        """Return the principal variation from root move number `first`, or from the best."""
        if first is None:
            edge = int(choose_edge(self._forest, slot, 0.0, self._params))
        else:
            edge = int(self._forest.nodes["first"][slot, 0]) + first
        return principal_variation(self._forest, slot, edge)

    def outcome(self, slot: int = 0) -> int | None:
        """Return how the game has ended at the root (engine/board/rules.py), or None."""
        ending, _ = examine(self._forest, slot, self._forest.roots[slot], _NO_PATH, self._planes)
        return None if ending == ONGOING else int(ending)
