"""Settings of a match and its players. This module imports little, since `--help` is built from it.

A player is one of

    DIR                 search with a checkpoint
    onnx:DIR            search with its model.onnx in onnxruntime: the fastest on a CPU, written by
                        fianchetto export --int8
    hand-written        search with the hand-written evaluator
    uniform             search with a uniform policy and a constant value
    policy:X            one of the players above without search: plays its most likely move
    uci:COMMAND         a UCI engine, such as "uci:stockfish" or "uci:fianchetto uci --evaluator
                        hand-written"

Options are NAME=VALUE. For a UCI engine they are its UCI options (Hash=16), for other players the
fields of SearchConfig (c_puct=2, algorithm=gumbel, leaves=8). With rating=1800, a calibrated
checkpoint plays like a human of that rating; aim=strength also matches the strength of play
(engine/search/human.py). Gumbel noise is off, unlike in self-play; gumbel_scale=1 turns it on.
"""

import re
from dataclasses import field
from pathlib import Path
from typing import Annotated

from pydantic import Field

from engine.match import Limit, MatchError, PlayerError
from engine.match.sprt import SprtConfig
from model.settings import Count, NonNegative, Positive, settings

CLOCK_PATTERN = re.compile(
    r"(?:(\d{1,5})/)?(\d{0,5}\.?\d{1,5})(?:\+(\d{0,5}\.?\d{1,5}))?", re.ASCII
)
"""Pattern of a time control: [MOVES/]SECONDS[+INCREMENT]."""


@settings(PlayerError)
class SideConfig:
    """One player and its limits."""

    who: str
    """A checkpoint's directory, onnx:DIR, hand-written, uniform, policy:X or uci:COMMAND."""
    simulations: Positive = 64
    """Simulations per move of a player of this project, unless a time is given."""
    nodes: Positive | None = None
    """Nodes per move of a UCI engine, unless a time is given."""
    movetime: Positive | None = None
    """Milliseconds per move."""
    tc: str | None = None
    """Clock as seconds+increment (10+0.1) or moves/seconds (40/60)."""
    options: tuple[str, ...] = ()
    """Options as NAME=VALUE: UCI options of an engine, search settings of other players."""

    def __post_init__(self) -> None:
        if self.movetime is not None and self.tc is not None:
            raise PlayerError(f"{self.who}: give a time per move or a clock, not both")

    @property
    def limit(self) -> Limit:
        """The limit of a move; raises PlayerError for an invalid clock."""
        if self.movetime is not None:
            return Limit(movetime=self.movetime / 1000)
        if self.tc is None:
            return Limit(nodes=self.nodes)
        clock = CLOCK_PATTERN.fullmatch(self.tc)
        if clock is None or not float(clock[2]) or (clock[1] and not int(clock[1])):
            formats = "seconds+increment (10+0.1) or moves/seconds (40/60)"
            raise PlayerError(f"{self.tc!r} is not a time control: give {formats}")
        moves = int(clock[1]) if clock[1] else None
        return Limit(base=float(clock[2]), increment=float(clock[3] or 0), moves=moves)


@settings(MatchError)
class ArenaConfig:
    """Settings of a match."""

    games: Annotated[int, Field(ge=2, multiple_of=2)] = 200
    """Number of games per match, two with each opening; increase it to extend a finished match."""
    seed: int = 0
    """Random seed for openings and searches."""
    book: Path | None = None
    """PGN or EPD file of openings; by default openings are generated."""
    plies: int = 8
    """Half-moves of a generated opening, or maximum number to take from each game of a PGN book. In
    a book, 0 takes whole games."""
    early: bool = False
    """End the match as soon as the sequential test (SPRT) reaches a decision."""
    sprt: SprtConfig = field(default_factory=SprtConfig)
    """Settings of the sequential test."""
    concurrency: Count = 0
    """Number of concurrent games; 0 chooses one less than the number of cores if time is limited, 8
    per core with UCI engines, otherwise 64."""
    margin: NonNegative = 0.05
    """Seconds by which a move may exceed its time before the game is lost on time."""
