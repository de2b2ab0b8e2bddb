"""The contestants of a match: this project's players, and UCI engines.

A match plays `width` games at a time, each in a slot. A *side* (`LocalSide` or `UciSide`) is one
contestant in all of them. Its `games` maps slots to game numbers. It gets the positions of several
games at once, so that a player evaluates them in one batch. Scores are centipawns, or moves to
mate, from the mover's view.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import chess
from chess.engine import Cp, Mate, Score

from engine.evaluation.evaluator import Evaluator, centipawns
from engine.match import Limit
from engine.player import Conditions, Play, Player, Request, Style
from engine.player.clock import Limits, MoveControl
from engine.search import SearchConfig
from engine.search.human import Correction

OVERHEAD_SECONDS = 0.003
"""Seconds of a timed move that `LocalSide` reserves for the work after the search."""
TIMED_NODES = 100_000
"""Maximum number of nodes of a `LocalSide` tree if time is the only limit."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Contestant:
    """One contestant: an evaluator of this project, with or without search, or a UCI engine."""

    name: str
    """Name in the games and the summary."""
    limit: Limit = field(default_factory=Limit)
    """Time or node limit of its moves."""
    evaluator: Evaluator | None = None
    """Evaluator of this project; None for a UCI engine, which is started by `command`."""
    search: SearchConfig | None = None
    """Settings of the evaluator's search; None plays the likeliest move without search."""
    seed: int = 0
    """Random seed of an evaluator's search."""
    rating: int = 0
    """Rating at which moves are sampled by human search (engine/search/human.py); 0 plays the best
    moves."""
    correction: Correction | None = None
    """Weights by which the search corrects the policy, if `rating` is set."""
    command: tuple[str, ...] = ()
    """Command line of a UCI engine."""
    options: Mapping[str, str] = field(default_factory=dict)
    """UCI options of an engine."""


class MoveRequest(NamedTuple):
    """A request for a side's move in one game."""

    slot: int
    board: chess.Board
    """The game so far, with its moves; do not change it."""
    clocks: tuple[float, float] | None
    """Seconds left for White and Black; None without clocks."""
    moves_to_go: int | None = None
    """Moves until the mover's next time control, including this one; None without time controls."""
    increments: tuple[float, float] = (0.0, 0.0)
    """Seconds added per move to the clocks of White and Black."""

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
    """Human-readable details of the fault."""


class LocalSide:
    """A contestant of this project: one player with a tree per slot, evaluated in one batch."""

    def __init__(
        self,
        contestant: Contestant,
        width: int,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Create the player of `width` games; without a time limit, it never evaluates one row."""
        assert contestant.evaluator is not None, "an engine is a UciSide"
        self.contestant, self.limit = contestant, contestant.limit
        human, search = contestant.correction is not None, contestant.search
        style = Style(
            search=None if human else search,
            correction=contestant.correction,
            book={} if search and not human else getattr(contestant.evaluator, "book", {}),
            simulations=search.simulations if human and search else 0,
            temperature=1.0 if human else 0.0,
            seed=contestant.seed,
            overhead=OVERHEAD_SECONDS,
        )
        self.player = Player(
            contestant.evaluator,
            style,
            games=width,
            clock=clock,
            double_single_rows=not self.limit.is_timed,
        )
        self.games: dict[int, int] = {}
        """Game numbers by slot; with the seed, they determine noise and sampled moves."""
        if self.limit.is_timed:
            self.player.prepare()

    def close(self) -> None:
        """Do nothing: the trees are freed with the object."""

    def play(self, requests: Sequence[MoveRequest]) -> list[PlayResult]:
        """Return a move for each request; on a clock, there is only one request."""
        control = MoveControl(self.player.pace.clock())
        plays = self.player.play_all([self._ask(request) for request in requests], control)
        seconds = self.player.pace.clock() - control.begun
        return [PlayResult(play.move, _score(play), seconds) for play in plays]

    def _ask(self, request: MoveRequest) -> Request:
        """Convert a MoveRequest to the player's Request."""
        limit, rating = self.limit, self.contestant.rating or None
        left = request.left if limit.base is not None else None
        base = limit.base if limit.moves is None else None  # one time control for the whole game
        return Request(
            board=request.board,
            conditions=Conditions(rating=rating, clock=left, base=base, increment=limit.increment),
            limits=Limits(
                movetime=limit.movetime,
                left=left,
                increment=limit.increment,
                moves_to_go=request.moves_to_go,
            ),
            slot=request.slot,
            game=self.games[request.slot],
            lines=0,
        )


def _score(play: Play) -> Score:
    """Return the score of the chosen move."""
    line = play.moves[0]
    if line.mate:
        moves = (abs(line.mate) + 1) // 2
        return Mate(moves if line.mate > 0 else -moves)
    return Cp(centipawns(line.value))
