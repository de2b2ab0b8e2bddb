"""The players of a match: our evaluators, with or without search, and engines that speak UCI, behind one small interface.

A match holds `width` games at a time in slots. A *side* is one player in all of them. It is asked for its moves in several
games at once, so our search makes one batch of them. Every move is pushed to both sides, so subtrees are kept. Scores are
centipawns, or moves to mate, from the mover's view.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import chess
import numpy as np
from chess.engine import Cp, Mate, Score

from engine.encoding.planes import label_of, move_of
from engine.evaluation.evaluator import Evaluator
from engine.evaluation.policy_move import choose_by_policy, evaluate_boards, known_columns, pick_moves
from engine.evaluation.score import centipawns
from engine.match.config import Limit
from engine.search import Search, SearchConfig
from engine.search.chess_rules import position_and_history
from engine.search.clock import MOST_SIMULATIONS, Limits, MoveTimer, Pace, divide_clock, run_until, warm_up
from engine.search.human import Correction, correct_policies

OVERHEAD = 0.003
"""Seconds of a timed move that our players leave unused, for the work after the search."""
TIMED_NODES = 100_000
"""Maximum number of positions of our players' trees where time is the only limit."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Player:
    """One player of a match: an evaluator of this project, with or without search, or the command of a UCI engine."""

    name: str
    """Name in the games and the summary."""
    limit: Limit = field(default_factory=Limit)
    """Limit of every move."""
    evaluator: Evaluator | None = None
    """Evaluator of this project; None for a UCI engine, which `command` starts."""
    search: SearchConfig | None = None
    """How an evaluator searches; None plays its likeliest move without search."""
    seed: int = 0
    """Random seed of an evaluator's search."""
    rating: int = 0
    """Rating at which an evaluator's moves are sampled, by human search (engine/search/human.py); 0 plays the best moves."""
    correction: Correction | None = None
    """How far the search corrects the policy, if `rating` is set."""
    command: tuple[str, ...] = ()
    """Command line of a UCI engine."""
    options: Mapping[str, str] = field(default_factory=dict)
    """UCI options of an engine."""


class MoveRequest(NamedTuple):
    """A game in which a side is to move, and its time."""

    slot: int
    board: chess.Board
    """The game so far, with its moves; not to be changed."""
    clocks: tuple[float, float] | None
    """Seconds left of White and Black, None without clocks."""
    moves_to_go: int | None = None
    """Moves until the mover's clock gains time, this one included; None where it only gains increments."""

    @property
    def left(self) -> float | None:
        """Seconds left on the mover's clock."""
        return None if self.clocks is None else self.clocks[0 if self.board.turn else 1]


class PlayResult(NamedTuple):
    """A side's answer to a request."""

    move: chess.Move | None
    score: Score | None
    seconds: float
    fault: str | None = None
    """Why there is no move: `crash`, `timeout` or `illegal move`."""
    detail: str = ""
    """Details of the fault for people."""


class Side(Protocol):
    """A player in `width` games. Every method but `play` may do nothing."""

    def new_game(self, slot: int, board: chess.Board, game: int) -> None:
        """Begin a new game, of this number, in a slot."""
        return

    def play(self, requests: Sequence[MoveRequest]) -> list[PlayResult]:
        """Return a move for each request, in their order."""

    def push(self, moves: Sequence[tuple[int, chess.Move, chess.Color]]) -> None:
        """Play the moves (slot, move, side that made it) in the games, the side's own included."""
        return

    def close(self) -> None:
        """Free memory and end processes."""
        return


class PolicySide(Side):
    """Plays the evaluator's likeliest legal move; pawns become queens."""

    def __init__(self, evaluator: Evaluator) -> None:
        self.evaluator = evaluator

    def play(self, requests: Sequence[MoveRequest]) -> list[PlayResult]:
        """Evaluate all positions in one batch."""
        begun = time.perf_counter()
        played = choose_by_policy(self.evaluator, [request.board for request in requests])
        seconds = time.perf_counter() - begun
        return [PlayResult(one.move, Cp(centipawns(one.value)), seconds) for one in played]


class HumanSide(Side):
    """Draws moves as people of a rating play: the policy of that rating, corrected by a search."""

    def __init__(self, player: Player, evaluator: Evaluator, searched: Evaluator) -> None:
        """Take policies from `evaluator`, and search with `searched`, which is not conditioned on ratings."""
        assert player.correction is not None
        assert player.search is not None
        self.player, self.evaluator, self.searched = player, evaluator, searched
        self.correction, self.simulations = player.correction, player.search.simulations
        self.games: dict[int, int] = {}

    def new_game(self, slot: int, board: chess.Board, game: int) -> None:
        """Store the game's number, which with the seed and the ply determines the sampled moves."""
        self.games[slot] = game

    def play(self, requests: Sequence[MoveRequest]) -> list[PlayResult]:
        """Search all positions side by side."""
        begun, rating = time.perf_counter(), self.player.rating
        boards = [request.board for request in requests]
        asked = boards * 2 if len(boards) == 1 else boards  # a single row may round differently
        columns = known_columns(self.evaluator, asked, elo=rating, opponent_elo=rating)
        logits_BA, wdl_BW = (part[: len(boards)] for part in evaluate_boards(self.evaluator, asked, columns))
        ratings, answer = [rating] * len(boards), (logits_BA, wdl_BW)
        corrected_BA = correct_policies(self.searched, boards, answer, ratings, self.correction, self.simulations)
        seeds = [(self.player.seed, self.games[request.slot], request.board.ply()) for request in requests]
        played = pick_moves(boards, corrected_BA, wdl_BW, seeds, temperature=1.0)
        seconds = time.perf_counter() - begun
        return [PlayResult(one.move, Cp(centipawns(one.value)), seconds) for one in played]


class SearchSide(Side):
    """Plays the move that a batched search chooses; one tree per slot. Time is used as the UCI engine uses it."""

    def __init__(
        self,
        player: Player,
        evaluator: Evaluator,
        config: SearchConfig,
        width: int,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.limit, self.config = player.limit, config
        self.pace = Pace(clock)
        self.search = Search(evaluator, config, games=width, seed=player.seed)
        if self.limit.timed:
            warm_up(evaluator)
            self.pace.measure(evaluator)

    def new_game(self, slot: int, board: chess.Board, game: int) -> None:
        """Reset the slot's tree."""
        position, keys = position_and_history(board)
        self.search.start(slot, position, keys, game=game)

    def push(self, moves: Sequence[tuple[int, chess.Move, chess.Color]]) -> None:
        """Keep the subtrees of the moves that were played."""
        for slot, move, turn in moves:
            self.search.play(slot, label_of(move, turn), move.promotion or 0)

    def play(self, requests: Sequence[MoveRequest]) -> list[PlayResult]:
        """Search all positions side by side in the configuration's simulations, or a single one in its time."""
        begun = self.pace.clock()
        slots_N = np.array([request.slot for request in requests], dtype=np.int64)
        if self.limit.timed:
            assert len(requests) == 1, "where time is measured a side plays one game"
            if (played := self._search_in_time(requests[0], begun)) is not None:
                return [played]
        else:
            self.search.run(slots_N)
        labels_N, promotions_N = self.search.choose(slots_N)
        seconds = self.pace.clock() - begun
        chosen = zip(requests, labels_N.tolist(), promotions_N.tolist(), strict=True)
        return [self._result(request, label, promotion, seconds) for request, label, promotion in chosen]

    def _search_in_time(self, request: MoveRequest, begun: float) -> PlayResult | None:
        """Search within a move's time, or return a move of the policy where the time is too short."""
        limit, slot, board = self.limit, request.slot, request.board
        left = request.left if limit.base is not None else None
        limits = Limits(movetime=limit.movetime, left=left, increment=limit.increment, moves_to_go=request.moves_to_go)
        budget = divide_clock(limits, OVERHEAD)
        assert budget.hard is not None, "a timed player has a time"
        if not self.search.root(slot).simulations:
            substitute = self.pace.substitute(self.search.evaluator, begun + budget.hard - self.pace.clock())
            if substitute is not None:
                played = choose_by_policy(substitute, [board])[0]
                return PlayResult(played.move, Cp(centipawns(played.value)), self.pace.clock() - begun)
        leaves = self.pace.leaves(budget, self.config.leaves)
        choices = board.legal_moves.count()
        timer = MoveTimer(self.pace, self.search, slot, budget, begun=begun, choices=choices, leaves=leaves)
        run_until(self.search, slot, timer, simulations=MOST_SIMULATIONS, leaves=leaves)
        return None

    def _result(self, request: MoveRequest, label: int, promotion: int, seconds: float) -> PlayResult:
        """Return the chosen move with the search's score of it."""
        root = self.search.root(request.slot)
        index = root.index_of(label, promotion)
        plies = int(root.mates[index])
        moves = (abs(plies) + 1) // 2
        score = Mate(moves if plies > 0 else -moves) if plies else Cp(centipawns(root.value_at(index)))
        return PlayResult(move_of(label, promotion, request.board.turn), score, seconds)
