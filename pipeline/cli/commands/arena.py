"""Commands that measure playing strength: arena, ladder, judge."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import tyro

from engine.match.config import PlayerError
from pipeline.cli.commands.base import Common, Interrupt
from pipeline.cli.progress import bar
from pipeline.errors import Stopped
from pipeline.matches.config import ArenaConfig, SideConfig


@dataclass(frozen=True, kw_only=True, slots=True)
class Arena(Common):
    """Play a match between two players: checkpoints, evaluators or UCI engines.

    A player is a checkpoint's directory, `onnx:DIR` (its model.onnx), `hand-written`, `uniform`, `policy:X` (one of these
    without search) or `uci:COMMAND`. The directory gets games.pgn, games.csv, games.jsonl and summary.json. The same
    command continues a match that was stopped; a larger `--games` extends it.
    """

    a: tyro.conf.Positional[Annotated[str, tyro.conf.arg(metavar="PLAYER_A")]]
    """Player A; the result is from its side."""
    b: tyro.conf.Positional[Annotated[str, tyro.conf.arg(metavar="PLAYER_B")]]
    """Player B."""
    out: Path
    """Directory of the match."""
    simulations: int = 64
    """Simulations per move of checkpoints and evaluators."""
    simulations_b: int | None = None
    """Simulations of player B, if different."""
    nodes: int | None = None
    """Nodes per move of UCI engines."""
    nodes_b: int | None = None
    """Nodes of player B, if different."""
    movetime: int | None = None
    """Milliseconds per move, instead of simulations and nodes."""
    movetime_b: int | None = None
    """Milliseconds of player B, if different."""
    tc: str | None = None
    """Clock as seconds+increment (10+0.1) or moves/seconds (40/60), instead of simulations and nodes."""
    tc_b: str | None = None
    """Clock of player B, if different."""
    a_option: tuple[str, ...] = ()
    """NAME=VALUE for player A: options of a UCI engine (Hash=16), or of our search (c_puct=2,algorithm=gumbel)."""
    b_option: tuple[str, ...] = ()
    """NAME=VALUE for player B."""
    config: tyro.conf.OmitArgPrefixes[ArenaConfig] = field(default_factory=ArenaConfig)
    """The match."""

    def run(self) -> dict[str, Any]:
        """Play and return the summary."""
        from pipeline.matches.arena import arena

        stop = Interrupt()
        with bar("arena") as progress:
            summary = arena(*self.sides(), self.config, self.out, progress=progress, stop=stop)
        if not summary["finished"]:
            raise Stopped(f"stopped after {summary['games']} games; run the same command to continue")
        return {**summary, "out": str(self.out)}

    def sides(self) -> tuple[SideConfig, SideConfig]:
        """Return the settings of both players."""
        timed_b = self.movetime_b is not None or self.tc_b is not None
        first = SideConfig(
            who=self.a,
            simulations=self.simulations,
            nodes=self.nodes,
            movetime=self.movetime,
            tc=self.tc,
            options=self.a_option,
        )
        second = replace(
            first,
            who=self.b,
            simulations=self.simulations_b or self.simulations,
            nodes=self.nodes_b or self.nodes,
            options=self.b_option,
        )
        return first, replace(second, movetime=self.movetime_b, tc=self.tc_b) if timed_b else second


@dataclass(frozen=True, kw_only=True, slots=True)
class Ladder(Common):
    """Measure a player's strength in matches against Stockfish and the hand-written player.

    Each number of simulations is a row of the table, which is written as table.md and ladder.json. Each match has its own
    directory and is continued if it was stopped. With `--tc` the player, the hand-written player and the engine of limited
    strength play on a clock, and there is one row per opponent; the engine at fixed nodes has no clock.
    """

    who: tyro.conf.Positional[Annotated[str, tyro.conf.arg(metavar="PLAYER")]]
    """The player: a checkpoint's directory, onnx:DIR, hand-written, uniform or policy:X; with --tc also uci:COMMAND."""
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
    config: tyro.conf.OmitArgPrefixes[ArenaConfig] = field(default_factory=ArenaConfig)
    """The matches."""

    def run(self) -> dict[str, Any]:
        """Play every match and return the table."""
        from pipeline.matches.ladder import ladder, opponents

        stop = Interrupt()
        against = opponents(self.engine, self.nodes, self.elo, self.elo_nodes, self.hand_written, self.tc)
        rungs = tuple(self.simulations) if self.tc is None else (self.tc,)
        with bar("ladder") as progress:
            return ladder(self.who, rungs, against, self.config, self.out, progress=progress, stop=stop)


@dataclass(frozen=True, kw_only=True, slots=True)
class Judge(Common):
    """Compare players' moves on positions that a strong engine has evaluated: faster than matches, and less certain.

    A player is a checkpoint's directory, `onnx:DIR`, `hand-written` or `uniform`; options of its search follow after
    commas, as in `datasets/embedded,simulations=16,algorithm=gumbel`. The loss is the expected score lost against the best
    move: by a move drawn from the policy, by the policy that self-play would record, and by the move played. The engine's
    evaluations are kept in --out and used again; the same command continues a run that was stopped.
    """

    players: tyro.conf.Positional[
        Annotated[tuple[str, ...], tyro.conf.arg(metavar="PLAYER...", help_behavior_hint="(required)")]
    ]
    """The players; the others are compared with the first."""
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

        sides, command, stop = [_side(words) for words in self.players], judging(self.engine), Interrupt()
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
            result = weigh(players, found, progress)
        return {**result, "out": str(self.out), "text": text_of(result)}


def _side(words: str) -> SideConfig:
    """Parse PLAYER,NAME=VALUE,..."""
    who, *options = words.split(",")
    given = [option for option in options if option.startswith("simulations=")]
    side = SideConfig(who=who, options=tuple(option for option in options if option not in given))
    try:
        return replace(side, simulations=int(given[-1].partition("=")[2])) if given else side
    except ValueError as error:
        raise PlayerError(f"{who}: simulations is a number, not {given[-1]!r}") from error
