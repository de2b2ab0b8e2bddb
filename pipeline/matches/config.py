"""Configuration of a match: two players and the conditions. It imports little, because `--help` is made from it.

A player is one of

    DIR                 a checkpoint, searching
    onnx:DIR            its model.onnx by onnxruntime, searching: the quickest on a processor, made by fianchetto export --int8
    hand-written        the hand-written evaluator, searching
    uniform             no knowledge at all, searching
    policy:X            X of the above without search: its likeliest move
    uci:COMMAND         any UCI engine, e.g. "uci:stockfish" or "uci:fianchetto uci --evaluator hand-written"

Options are NAME=VALUE: UCI options of an engine (Hash=16), fields of SearchConfig for our players (c_puct=2,
algorithm=gumbel, leaves=8). Unlike in self-play, Gumbel noise is off; gumbel_scale=1 turns it on.
"""

from dataclasses import dataclass, field
from pathlib import Path

from engine.match.config import Limit, MatchConfig, MatchError, PlayerError
from engine.match.sprt import SprtConfig


@dataclass(frozen=True, kw_only=True, slots=True)
class SideConfig:
    """One player and its limits."""

    who: str
    """A checkpoint's directory, onnx:DIR, hand-written, uniform, policy:X or uci:COMMAND."""
    simulations: int = 64
    """Simulations a move of our players, unless a time is given."""
    nodes: int | None = None
    """Nodes a move of an engine, unless a time is given."""
    movetime: int | None = None
    """Milliseconds for every move."""
    tc: str | None = None
    """A clock, as seconds+increment (10+0.1) or moves/seconds (40/60)."""
    options: tuple[str, ...] = ()
    """NAME=VALUE."""

    def __post_init__(self) -> None:
        if self.movetime is not None and self.tc is not None:
            raise PlayerError(f"{self.who}: a time a move and a clock cannot both be followed")
        if self.simulations < 1 or (self.nodes is not None and self.nodes < 1):
            raise PlayerError(f"{self.who}: simulations and nodes must be 1 or more")
        if self.movetime is not None and self.movetime < 1:
            raise PlayerError(f"{self.who}: a move takes at least a millisecond, not {self.movetime}")

    @property
    def limit(self) -> Limit:
        """Return the limit of a move."""
        if self.movetime is not None:
            return Limit(movetime=self.movetime / 1000)
        if self.tc is None:
            return Limit(nodes=self.nodes)
        moves, slash, clock = self.tc.rpartition("/")
        base, _, increment = clock.partition("+")
        try:
            limit = Limit(base=float(base), increment=float(increment or 0), moves=int(moves) if slash else None)
        except ValueError:
            limit = Limit(base=0.0)
        sensible = limit.base and 0 < limit.base < 1e6 and 0 <= limit.increment < 1e6
        if not sensible or not (limit.moves is None or 0 < limit.moves < 1e6):
            raise PlayerError(f"{self.tc!r} is no clock: say seconds+increment (10+0.1) or moves/seconds (40/60)")
        return limit


@dataclass(frozen=True, kw_only=True, slots=True)
class ArenaConfig:
    """The conditions of a match."""

    games: int = 200
    """Games to play, two with each opening. A finished match is extended by a larger number."""
    seed: int = 0
    """Random seed for openings and searches."""
    book: Path | None = None
    """PGN or EPD file of openings. Default: openings are generated."""
    plies: int = 8
    """Half-moves of generated openings, and most half-moves taken from the games of a PGN book; 0 for whole games."""
    repeat: bool = False
    """Reuse openings of a book that is too short."""
    early: bool = False
    """End the match as soon as the sequential test has decided."""
    sprt: SprtConfig = field(default_factory=SprtConfig)
    """The sequential test."""
    match: MatchConfig = field(default_factory=MatchConfig)
    """How games are played."""

    def __post_init__(self) -> None:
        if self.games < 2 or self.games % 2:
            raise MatchError(f"games come in pairs, one with either colour: 2, 4, 6 ..., not {self.games}")
