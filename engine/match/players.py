"""Describe the contestants of a match, and play the moves of this project's players.

A match plays `width` games at a time, each in a slot. A *side* (`LocalSide` or `UciSide`) plays the
moves of one contestant in all of them; its `games` maps slots to game numbers. It gets the
positions of several games at once, so that a player evaluates them in one batch. Scores are
centipawns, or moves to mate, from the mover's view.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import chess
from chess.engine import Cp, Mate, Score

from engine.evaluation.evaluator import Evaluator, to_centipawns
from engine.match import Limit
from engine.player import Conditions, Play, Player, Request, Style
from engine.player.clock import Limits, MoveControl
from engine.search import SearchConfig
from engine.search.human import Correction

LOCAL_OVERHEAD_SECONDS = 0.003
"""Seconds of a timed move that `LocalSide` reserves for its work after the search."""
MAX_TIMED_NODES = 100_000
"""Maximum number of nodes of a `LocalSide` tree if time is the only limit."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Contestant:
    """Contestant of a match: an evaluator, with or without search, or a UCI engine."""

    name: str
    """Name in the records and the summary of the match."""
    limit: Limit = field(default_factory=Limit)
    """Limits of its moves."""
    evaluator: Evaluator | None = None
    """Evaluator of this project; None for a UCI engine, which is started by `command`."""
    search: SearchConfig | None = None
    """Settings of the search; None plays the likeliest move, unless there is a `correction`."""
    seed: int = 0
    """Random seed of an evaluator's search."""
    rating: int = 0
    """Rating that human search (engine/search/human.py) imitates; 0 if unknown."""
    correction: Correction | None = None
    """Weights with which human search corrects the policy; None for no human search."""
    command: tuple[str, ...] = ()
    """Command line of a UCI engine."""
    options: Mapping[str, str] = field(default_factory=dict)
    """UCI options of an engine, by name."""


class MoveRequest(NamedTuple):
    """Request for a move in one game."""

    slot: int
    board: chess.Board
    """The game so far, with its moves; sides do not change it."""
    clocks: tuple[float, float] | None
    """Seconds left on the clocks of White and Black, 0 for a player without one; None if neither
    has a clock."""
    moves_to_go: int | None = None
    """Moves until the mover's next time control, including this one; None without time controls."""
    increments: tuple[float, float] = (0.0, 0.0)
    """Seconds added per move to the clocks of White and Black."""

    @property
    def left(self) -> float | None:
        """Seconds left on the mover's clock; None without clocks."""
        return None if self.clocks is None else self.clocks[0 if self.board.turn else 1]


class PlayResult(NamedTuple):
    """Answer of a side to a request."""

    move: chess.Move | None
    score: Score | None
    seconds: float
    fault: str | None = None
    """Why there is no move: `crash`, `timeout` or `illegal move`."""
    detail: str = ""
    """Description of the fault."""


class LocalSide:
    """Side of a contestant with an evaluator: one player with a search tree for each slot."""

    def __init__(self, contestant: Contestant, width: int) -> None:
        assert contestant.evaluator is not None, "UciSide plays the moves of engines"
        self.contestant, self.limit = contestant, contestant.limit
        human, search = contestant.correction is not None, contestant.search
        style = Style(
            search=None if human else search,
            correction=contestant.correction,
            book={} if search and not human else getattr(contestant.evaluator, "book", {}),
            simulations=search.simulations if human and search else 0,
            temperature=1.0 if human else 0.0,
            seed=contestant.seed,
            overhead=LOCAL_OVERHEAD_SECONDS,
        )
        self.player = Player(
            contestant.evaluator,
            style,
            games=width,
            clock=time.perf_counter,
            double_single_rows=not self.limit.is_timed,  # games on a clock are searched one by one
        )
        self.games: dict[int, int] = {}
        """Game number of each slot; with the seed, it determines noise and sampled moves."""
        if self.limit.is_timed:
            self.player.prepare()

    def close(self) -> None:
        """Do nothing: the trees are freed with the object."""

    def play(self, requests: Sequence[MoveRequest]) -> list[PlayResult]:
        """Choose a move for each request; on a clock, there must be only one."""
        control = MoveControl(self.player.timings.clock())
        plays = self.player.play_all(
            [self._convert_request(request) for request in requests], control
        )
        seconds = self.player.timings.clock() - control.start_time
        return [PlayResult(play.move, _read_score(play), seconds) for play in plays]

    def _convert_request(self, request: MoveRequest) -> Request:
        limit, rating = self.limit, self.contestant.rating or None
        left = request.left if limit.base is not None else None
        base = limit.base if limit.moves is None else None  # networks know no other clocks
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


def _read_score(play: Play) -> Score:
    line = play.moves[0]
    if line.mate:
        moves = (abs(line.mate) + 1) // 2
        return Mate(moves if line.mate > 0 else -moves)
    return Cp(to_centipawns(line.value))
