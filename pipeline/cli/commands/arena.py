"""Commands that measure playing strength: arena, ladder, judge."""

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from engine.match.config import PlayerError
from pipeline.cli.commands.base import Common, Interrupt
from pipeline.cli.progress import bar
from pipeline.errors import Stopped
from pipeline.matches.config import ArenaConfig, SideConfig

LIMITS = {"simulations": int, "nodes": int, "movetime": int, "tc": str}
"""Limits that may follow a player's name, besides options of its search or engine."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Arena(Common):
    """Play a match between two players; a match that was stopped continues, and a larger --games extends it.

    A player is a checkpoint's directory, `onnx:DIR` (its model.onnx), `hand-written`, `uniform`, `policy:X` (one of these
    without search) or `uci:COMMAND`. Its own limits and options follow after commas: `onnx:DIR,simulations=16,c_puct=2`
    or `uci:stockfish,nodes=1000,Hash=16`. The directory gets games.pgn, games.csv, games.jsonl and summary.json.
    """

    arguments: ClassVar = {"a": "PLAYER_A", "b": "PLAYER_B"}
    basic: ClassVar = "out games simulations nodes movetime tc book early concurrency seed"

    a: str
    """A checkpoint's directory, onnx:DIR, hand-written, uniform, policy:X or uci:COMMAND; the result is from its side."""
    b: str
    """Its opponent, likewise. Limits and options follow after commas: uci:stockfish,nodes=1000."""
    out: Path
    """Directory of the match."""
    simulations: int = 64
    """Simulations per move of checkpoints and evaluators."""
    nodes: int | None = None
    """Nodes per move of UCI engines."""
    movetime: int | None = None
    """Milliseconds per move, instead of simulations and nodes."""
    tc: str | None = None
    """Clock as seconds+increment (10+0.1) or moves/seconds (40/60), instead of simulations and nodes."""
    match: ArenaConfig = field(default_factory=ArenaConfig)
    """Rules of the match."""

    def run(self) -> dict[str, Any]:
        """Play and return the summary."""
        from pipeline.matches.arena import arena

        limits = {name: getattr(self, name) for name in LIMITS}
        first, second, stop = parse_player(self.a, **limits), parse_player(self.b, **limits), Interrupt()
        with bar("arena") as progress:
            summary = arena(first, second, self.match, self.out, progress=progress, stop=stop)
        if not summary["finished"]:
            raise Stopped(f"stopped after {summary['games']} games; run the same command to continue")
        return {**summary, "out": str(self.out)}


@dataclass(frozen=True, kw_only=True, slots=True)
class Ladder(Common):
    """Measure a player's strength in matches against Stockfish and the hand-written player.

    Each number of simulations is a row of the table, which is written as table.md and ladder.json. Each match has its own
    directory and continues if it was stopped. With --tc the player, the hand-written player and the engine of limited
    strength play on a clock, and there is one row per opponent; the engine at fixed nodes has no clock.
    """

    arguments: ClassVar = {"who": "PLAYER"}
    basic: ClassVar = "out games simulations hand_written engine nodes elo elo_nodes tc concurrency seed"

    who: str
    """A checkpoint's directory, onnx:DIR, hand-written, uniform or policy:X; with --tc also uci:COMMAND."""
    out: Path
    """Directory of the matches and the table."""
    simulations: tuple[int, ...] = (16, 64, 256)
    """Simulations per move of the player, one row each."""
    hand_written: int = 400
    """Simulations per move of the hand-written opponent; 0 leaves it out."""
    engine: str = "stockfish"
    """Command of the UCI engine."""
    nodes: tuple[int, ...] = (100, 1000, 10000)
    """Nodes per move of the engine, one opponent each."""
    elo: tuple[int, ...] = ()
    """UCI_Elo of the engine at limited strength, one opponent each; it searches --elo-nodes."""
    elo_nodes: int = 50_000
    """Nodes per move of the engine at limited strength, where there is no clock."""
    tc: str | None = None
    """Clock as seconds+increment (10+0.1) or moves/seconds (40/60), instead of simulations."""
    match: ArenaConfig = field(default_factory=ArenaConfig)
    """Rules of the matches."""

    def run(self) -> dict[str, Any]:
        """Play every match and return the table."""
        from pipeline.matches.ladder import ladder, opponents

        stop = Interrupt()
        against = opponents(self.engine, self.nodes, self.elo, self.elo_nodes, self.hand_written, self.tc)
        rungs = tuple(self.simulations) if self.tc is None else (self.tc,)
        with bar("ladder") as progress:
            return ladder(self.who, rungs, against, self.match, self.out, progress=progress, stop=stop)


@dataclass(frozen=True, kw_only=True, slots=True)
class Judge(Common):
    """Compare players' moves on positions that a strong engine has evaluated: faster than matches, and less certain.

    A player is a checkpoint's directory, `onnx:DIR`, `hand-written` or `uniform`; options of its search follow after
    commas, as in `datasets/embedded,simulations=16,algorithm=gumbel`. The loss is the expected score lost against the best
    move: by a move drawn from the policy, by the policy that self-play would record, and by the move played. The engine's
    evaluations are kept in --out and used again; the same command continues a run that was stopped.
    """

    arguments: ClassVar = {"players": "PLAYER..."}
    basic: ClassVar = "pgn out positions engine depth seed workers"

    players: tuple[str, ...]
    """Checkpoints' directories, onnx:DIR, hand-written or uniform; the others are compared with the first."""
    pgn: Path
    """Games to draw positions from, at most two per game."""
    out: Path
    """Directory of the engine's evaluations."""
    positions: int = 1000
    """Number of positions."""
    engine: str = "stockfish"
    """Command of the UCI engine that evaluates."""
    depth: int = 9
    """Depth of its search of every legal move."""
    seed: int = 0
    """Random seed for the choice of positions."""
    workers: int = 0
    """Engines running at once; 0 for one per core."""

    def run(self) -> dict[str, Any]:
        """Evaluate what has no evaluation yet, compare, and return the table."""
        from pipeline.evaluation.judgements import judged, judging
        from pipeline.executors.local import available_cores
        from pipeline.matches.judge import searchers, text_of, weigh

        sides, command, stop = [parse_player(words) for words in self.players], judging(self.engine), Interrupt()
        players = searchers(sides)  # refuses wrong options before minutes of evaluation
        with bar("judge") as progress:
            found = judged(
                self.pgn,
                self.out,
                positions=self.positions,
                command=command,
                depth=self.depth,
                seed=self.seed,
                workers=self.workers or available_cores(),
                progress=progress,
                stop=stop,
            )
        if stop():
            raise Stopped(f"stopped after {len(found)} positions; run the same command to continue")
        with bar("weigh") as progress:
            result = weigh(players, found, progress, stop)
        return {**result, "out": str(self.out), "text": text_of(result)}


def parse_player(words: str, **limits: Any) -> SideConfig:
    """Parse PLAYER,NAME=VALUE,...; the player's own limits override `limits`, and its own time any other time."""
    who, *options = re.split(r",(?=[^,=]+=)", words)
    own = {name: value for name, _, value in (option.partition("=") for option in options) if name in LIMITS}
    if {"movetime", "tc"} & own.keys():
        limits = {name: value for name, value in limits.items() if name not in ("movetime", "tc")}
    try:
        limits |= {name: LIMITS[name](value) for name, value in own.items()}
    except ValueError:
        raise PlayerError(f"{words}: simulations, nodes and movetime must be whole numbers") from None
    return SideConfig(
        who=who, options=tuple(option for option in options if option.partition("=")[0] not in LIMITS), **limits
    )
