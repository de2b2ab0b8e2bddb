"""The search that self-play, matches and the UCI player share: many games side by side, one batch to the evaluator a round.

Random numbers belong to (seed, game number), and a game's tree to itself, so a game's search does not depend on how many
others are searched beside it, provided that the evaluator's answer for a position does not either.

Axes: G slots, N slots asked, M moves, P planes, A labels.
"""

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from engine.board.bitboard import U
from engine.board.movegen import legal_planes
from engine.board.position import MAX_MOVES, Position
from engine.board.rng import seeded
from engine.board.rules import GOES_ON
from engine.encoding.planes import LABELS, PLANES, LabelError
from engine.evaluation.evaluator import Evaluator
from engine.progress import Stop
from engine.search.batch import begin, empty_round, expand_and_backup, prepare_roots, select, undo_round
from engine.search.config import SearchConfig, SearchError
from engine.search.expansion import list_moves
from engine.search.move_choice import CRITERIA, InteriorNode, Root, choose_all, choose_edge, interior_of, root_of
from engine.search.root import advance, ending_of, moves_at, reset_tree
from engine.search.tree import EDGE, HISTORY, UNKNOWN, bytes_of, empty_forest

_NO_MOVES = np.zeros((0, 2), dtype=np.int64)
LONGEST_PLAN = 1 << 16
"""Simulations that Sequential Halving can plan for."""


class Search:
    """Trees of `games` games, in slots 0..games-1.

    Raises SearchError for a configuration or a question that makes no sense, LabelError for an illegal move.
    """

    def __init__(
        self, evaluator: Evaluator, config: SearchConfig | None = None, *, games: int = 1, seed: int = 0
    ) -> None:
        if games < 1:
            raise SearchError(f"a search needs at least one game, not {games}")
        self.evaluator = evaluator
        self._config = config or SearchConfig()
        self.games = games
        self.seed = seed
        self.simulations = self.evaluations = self.batches = 0
        self._params = self.config.params()
        plan = min(self.config.simulations * 2, LONGEST_PLAN) if self._params.gumbel else 0
        self._forest = empty_forest(games, self.config.capacity, plan)
        self._spare = (
            np.zeros(self.config.capacity, dtype=np.int32),
            np.zeros(self._forest.edges.shape[1], dtype=EDGE),
        )
        self._round = empty_round(games * self.config.leaves, PLANES)
        self._blank = np.zeros(LABELS, dtype=np.float32)
        self._fresh = np.ones(games, dtype=np.bool_)
        self._started = np.zeros(games, dtype=np.bool_)
        self.spent = np.zeros(games, dtype=np.int64)
        """Simulations of each slot since its game began, int64[G]."""
        self._narrow = np.zeros(games, dtype=np.bool_)
        self._all = np.arange(games, dtype=np.int64)

    @property
    def config(self) -> SearchConfig:
        """The configuration that the arrays were made for; make another Search to search with another one."""
        return self._config

    @property
    def memory(self) -> int:
        """Return the memory that the trees may come to hold, bytes."""
        return self.games * bytes_of(self.config.capacity)

    def start(self, slot: int, position: Position, history: Sequence[int] = (), *, game: int | None = None) -> None:
        """Begin a game's tree at a position (uint64[16]).

        `history` are the keys (engine.search.history) of the game's positions since the last capture or pawn move, oldest
        first. `game` is the number that with the search's seed decides the slot's random numbers; the slot's own by default.
        """
        self._started[slot] = False
        past = list(history)[-HISTORY:]
        self._forest.roots[slot] = position
        self._forest.history[slot, : len(past)] = past
        self._forest.slots["history_length"][slot] = len(past)
        self._forest.slots["refused"][slot] = 0
        self._refuse_too_many(slot)
        self.spent[slot] = 0
        seeded(self._forest.rng[slot], U(self.seed % 2**64), U((slot if game is None else game) % 2**64))
        reset_tree(self._forest, slot)
        self._fresh[slot] = self._started[slot] = True
        self._narrow[slot] = False

    def position(self, slot: int) -> Position:
        """Return a copy of a slot's root position, uint64[16]."""
        return np.array(self._forest.roots[slot])

    def play(self, slot: int, label: int, promotion: int) -> bool:
        """Play a move and keep its part of the tree; return whether there was one. LabelError when it is illegal."""
        planes, moves = np.empty(PLANES, dtype=np.uint64), np.zeros(MAX_MOVES, dtype=EDGE)
        legal_planes(self._forest.roots[slot], planes)
        legal = moves[: list_moves(planes, moves)]
        if not ((legal["label"] == label) & (legal["promotion"] == promotion)).any():
            raise LabelError(f"label {label} with promotion {promotion} is no legal move here")
        return self._advance(slot, label, promotion)

    def play_all(
        self, labels: NDArray[np.int64], promotions: NDArray[np.int64], slots: NDArray[np.int64] | None = None
    ) -> None:
        """Play a legal move in each of the slots (all by default), int64[N] each; what `choose` gave is legal."""
        for slot, label, promotion in zip(self._slots(slots), labels, promotions, strict=True):
            self._advance(slot, label, promotion)

    def _advance(self, slot: int, label: int, promotion: int) -> bool:
        self._fresh[slot], self._narrow[slot] = True, False
        kept = bool(advance(self._forest, slot, label, promotion, self.config.reuse, self._spare))
        self._refuse_too_many(slot)
        return kept

    def _refuse_too_many(self, slot: int) -> None:
        """Raise SearchError where a slot's root has more moves than there is room for: no game of chess leads there."""
        moves = int(moves_at(self._forest, slot))
        if moves > MAX_MOVES:
            self._started[slot] = False
            raise SearchError(f"a position with {moves} legal moves cannot be searched: {MAX_MOVES} are the most")

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

        Each root gets `simulations` more simulations (the configuration's by default, or int64[N]; 0 only expands it), unless
        it is proven, decided by an option, or `stop()` returns True, which is called after every round. `leaves` lowers the
        configuration's leaves for this run. `noise` (or bool[N]) says which roots get the configuration's Dirichlet or Gumbel
        noise. `allowed` are the (label, promotion) that the roots are restricted to; such a tree is reset, here and at the
        next run. Expanding a root is no simulation.

        An exception of the evaluator undoes the round and is passed on, as is SearchError for answers that are not finite;
        the next run goes on from the rounds before.
        """
        asked = self._slots(slots)
        leaves = self.config.leaves if leaves is None else leaves
        if not 1 <= leaves <= self.config.leaves:
            raise SearchError(f"leaves must be between 1 and the configuration's {self.config.leaves}, not {leaves}")
        restricted = _NO_MOVES if allowed is None else np.array(allowed, dtype=np.int64).reshape(-1, 2)
        for slot in asked if len(restricted) else asked[self._narrow[asked]]:
            reset_tree(self._forest, slot)
            self._fresh[slot] = True
        self._narrow[asked] = len(restricted) > 0
        wanted = np.zeros(len(asked), dtype=np.int64)
        wanted[:] = self.config.simulations if simulations is None else simulations
        if len(wanted) and wanted.min() < 0:
            raise SearchError(f"simulations must be 0 or more, not {wanted.min()}")
        done = np.zeros(len(asked), dtype=np.int64)
        noisy = np.zeros(len(asked), dtype=np.bool_)
        noisy[:] = noise
        self._open(asked, restricted)
        for given in (True, False):
            group = np.flatnonzero(noisy == given)
            if len(group):
                wanted[group] = self._begin(asked[group], wanted[group], restricted, given)
        while True:
            rows = select(self._forest, asked, (wanted, done), leaves, self._params, self._round)
            if rows:
                self._evaluate(rows)
            elif not (done < wanted).any():
                break
            if stop is not None and stop():
                break
        self.spent[asked] += done
        self.simulations += int(done.sum())

    def _slots(self, slots: NDArray[np.int64] | None) -> NDArray[np.int64]:
        asked = self._all if slots is None else np.asarray(slots, dtype=np.int64)
        if not self._started[asked].all():
            raise SearchError("a slot that was never started holds no game")
        return asked

    def _open(self, slots: NDArray[np.int64], allowed: NDArray[np.int64]) -> None:
        """Expand the roots that are not yet."""
        rows = prepare_roots(self._forest, slots, self._round, self._blank, allowed)
        if rows:
            self._evaluate(rows)

    def _begin(
        self, slots: NDArray[np.int64], wanted: NDArray[np.int64], allowed: NDArray[np.int64], noise: bool
    ) -> NDArray[np.int64]:
        """Prepare the roots for `wanted` int64[N] simulations each; return those that are allotted, int64[N]."""
        config, gumbel = self.config, self._params.gumbel
        shaping = (config.root_temperature, config.dirichlet_share * (noise and not gumbel), config.dirichlet_alpha)
        scale = float(config.gumbel_scale) * noise if gumbel else -1.0
        starting = (config.considered, scale, config.repetition_penalty, config.branching, config.endgame)
        begin(
            self._forest,
            slots,
            wanted,
            tuple(float(number) for number in shaping),
            (starting[0], *(float(number) for number in starting[1:])),
            allowed,
            self._fresh,
        )
        return wanted

    def _evaluate(self, rows: int) -> None:
        """Evaluate a round's leaves, expand them and back their values up; undo the round if that fails."""
        done = 0
        try:
            logits, wdl = self.evaluator(self._round.planes[:rows])
            if logits.shape != (rows, LABELS) or wdl.shape != (rows, 3):
                raise SearchError(f"the evaluator gave shapes {logits.shape} and {wdl.shape} for {rows} rows")
            done = int(expand_and_backup(self._forest, rows, self._round, logits, wdl, self._params))
            if done < rows:
                raise SearchError("the evaluator gave NaN or infinity: is the network's file damaged?")
        finally:
            if done < rows:
                undo_round(self._forest, done, rows, self._round, self._params)
        self.evaluations += rows
        self.batches += 1

    def choose(
        self,
        slots: NDArray[np.int64] | None = None,
        *,
        temperature: float | NDArray[np.float64] = 0.0,
        criterion: Literal["visits", "lcb", "improved"] = "visits",
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Choose a move for each slot, (labels int64[N], promotions int64[N]); (-1, 0) where there is none.

        The quickest proven win first; a proven loss only where there is nothing else, and then the slowest. `temperature`
        is one number or float64[N]: 0 takes the best, above it weights ** (1 / temperature) are drawn from. With gumbel,
        visits at temperature 0 give Sequential Halving's winner.
        """
        asked = self._slots(slots)
        temperatures = np.zeros(len(asked), dtype=np.float64)
        temperatures[:] = temperature
        out = np.empty((len(asked), 2), dtype=np.int64)
        choose_all(self._forest, asked, CRITERIA[criterion], temperatures, self._params, out)
        return out[:, 0].copy(), out[:, 1].copy()

    def root(self, slot: int = 0) -> Root:
        """Return what the search found at a slot's root."""
        return root_of(self._forest, slot, self._params)

    def interior(self, slot: int, least: int) -> list[InteriorNode]:
        """Return the nodes below a slot's root that have `least` visits or more, and a move of theirs."""
        return interior_of(self._forest, slot, least)

    def values(self, slots: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the values of the slots' roots, float64[N], each its mover's view, as `root` gives them."""
        roots = self._forest.nodes[slots, 0]
        mean_N = roots["value_sum"] / np.maximum(roots["visits"], 1)
        values_N: NDArray[np.float64] = np.where(roots["proof"] != UNKNOWN, roots["proof"], mean_N.clip(-1.0, 1.0))
        return values_N

    def line(self, slot: int = 0, first: int | None = None) -> list[tuple[int, int]]:
        """Return the principal variation as (label, promotion), from the root's move number `first` (the best by default)."""
        forest, moves = self._forest, []
        edge = int(choose_edge(forest, slot, CRITERIA["visits"], 0.0, self._params))
        if first is not None:
            edge = int(forest.nodes["first"][slot, 0]) + first
        while edge >= 0:
            move = forest.edges[slot, edge]
            moves.append((int(move["label"]), int(move["promotion"])))
            node = forest.nodes[slot, int(move["child"])]
            if move["child"] < 0 or node["count"] < 1:
                break
            start, proof = int(node["first"]), int(node["proof"])
            edges = forest.edges[slot, start : start + int(node["count"])]
            wanted: Any = edges["visits"].astype(np.float64)
            if abs(proof) == 1:
                child = edges["child"]
                plies = np.where(child >= 0, forest.nodes["distance"][slot, np.maximum(child, 0)], 0)
                wanted = np.where(edges["proof"] == proof, 2e9 - proof * plies, wanted)
            if wanted.max() <= 0:
                break
            edge = start + int(wanted.argmax())
        return moves

    def outcome(self, slot: int = 0) -> int | None:
        """Return how the rules end the game at a slot's root (engine.board.rules), None while it goes on."""
        ending = int(ending_of(self._forest, slot, np.empty(PLANES, dtype=np.uint64)))
        return None if ending == GOES_ON else ending

    def refused(self, slot: int = 0) -> int:
        """Return how many positions found no room in a slot's tree since its game began; their values were still counted."""
        return int(self._forest.slots["refused"][slot])
