"""Settings of a match: the players and how they play. Imports little, because `--help` is made from
it.

A player is one of

    DIR                 a checkpoint, searching
    onnx:DIR            its model.onnx by onnxruntime, searching: the fastest on a CPU, made by
    fianchetto export --int8
    hand-written        the hand-written evaluator, searching
    uniform             an evaluator without knowledge, searching
    policy:X            X of the above without search: its likeliest move
    uci:COMMAND         a UCI engine, such as "uci:stockfish" or "uci:fianchetto uci --evaluator
    hand-written"

Options are NAME=VALUE: UCI options of an engine (Hash=16), or fields of SearchConfig for our
players (c_puct=2, algorithm=gumbel, leaves=8). A calibrated checkpoint plays as people of a rating
do with rating=1800, which may have aim=strength (engine/search/human.py). Gumbel noise is off,
unlike in self-play; gumbel_scale=1 turns it on.
"""

import re
from dataclasses import field
from pathlib import Path
from typing import Annotated

from pydantic import Field

from engine.match import Limit, MatchError, PlayerError
from engine.match.sprt import SprtConfig
from model.settings import Count, NotNegative, Positive, settings

CLOCK = re.compile(r"(?:(\d{1,5})/)?(\d{0,5}\.?\d{1,5})(?:\+(\d{0,5}\.?\d{1,5}))?", re.ASCII)
"""[MOVES/]SECONDS[+INCREMENT]."""


@settings(PlayerError)
class SideConfig:
    """One player and its limits."""

    who: str
    """A checkpoint's directory, onnx:DIR, hand-written, uniform, policy:X or uci:COMMAND."""
    simulations: Positive = 64
    """Simulations per move of our players, unless a time is given."""
    nodes: Positive | None = None
    """Nodes per move of an engine, unless a time is given."""
    movetime: Positive | None = None
    """Milliseconds per move."""
    tc: str | None = None
    """Clock as seconds+increment (10+0.1) or moves/seconds (40/60)."""
    options: tuple[str, ...] = ()
    """NAME=VALUE."""

    def __post_init__(self) -> None:
        if self.movetime is not None and self.tc is not None:
            raise PlayerError(f"{self.who}: give a time per move or a clock, not both")

    @property
    def limit(self) -> Limit:
        """Return the limit of a move; raises PlayerError for an invalid clock."""
        if self.movetime is not None:
            return Limit(movetime=self.movetime / 1000)
        if self.tc is None:
            return Limit(nodes=self.nodes)
        found = CLOCK.fullmatch(self.tc)
        if found is None or not float(found[2]) or (found[1] and not int(found[1])):
            clocks = "seconds+increment (10+0.1) or moves/seconds (40/60)"
            raise PlayerError(f"{self.tc!r} is not a clock: give {clocks}")
        moves = int(found[1]) if found[1] else None
        return Limit(base=float(found[2]), increment=float(found[3] or 0), moves=moves)


@settings(MatchError)
class ArenaConfig:
    """How a match is played."""

    games: Annotated[int, Field(ge=2, multiple_of=2)] = 200
    """Games to play, two with each opening. A finished match is extended by a larger number."""
    seed: int = 0
    """Random seed for openings and searches."""
    book: Path | None = None
    """PGN or EPD file of openings; by default openings are generated."""
    plies: int = 8
    """Half-moves of generated openings, and most half-moves taken from the games of a PGN book; 0
    for whole games."""
    early: bool = False
    """End the match as soon as the sequential test has decided."""
    sprt: SprtConfig = field(default_factory=SprtConfig)
    """The sequential test."""
    concurrency: Count = 0
    """Games at a time, or 0 for 64 between networks and evaluators, 8 for each core with UCI
    engines, and on a clock one fewer than cores."""
    margin: NotNegative = 0.05
    """Seconds that a move may be late before the game is lost on time."""
