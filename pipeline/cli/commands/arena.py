"""Commands on strength: arena, ladder, judge."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tyro

from engine.match.config import PlayerError
from pipeline.cli.commands.base import Common, Interrupt
from pipeline.cli.progress import bar
from pipeline.errors import Stopped
from pipeline.matches.config import ArenaConfig, SideConfig


@dataclass(frozen=True, kw_only=True, slots=True)
class Arena(Common):
    """Play a match between two players: our evaluators and checkpoints, or any UCI engines.

    A player is a checkpoint's directory, `hand-written`, `uniform`, `policy:X` (one of these without search) or
    `uci:COMMAND`. The directory gets games.pgn, games.csv, games.jsonl and summary.json; the same command continues a match
    that was stopped, and `--games` may grow.
    """

    a: tyro.conf.Positional[str]
    """The player whose result is told."""
    b: tyro.conf.Positional[str]
    """Its opponent."""
    out: Path
    """Directory of the match."""
    simulations: int = 64
    """Simulations of our players' moves."""
    simulations_b: int | None = None
    """B's, where they differ."""
    nodes: int | None = None
    """Nodes of engines' moves."""
    nodes_b: int | None = None
    """B's, where they differ."""
    movetime: int | None = None
    """Milliseconds of every move, for both, instead of simulations and nodes."""
    movetime_b: int | None = None
    """B's, where they differ."""
    tc: str | None = None
    """Clocks of both, as seconds+increment (10+0.1) or moves/seconds (40/60), instead of simulations and nodes."""
    tc_b: str | None = None
    """B's clock, where it differs."""
    a_option: tuple[str, ...] = ()
    """NAME=VALUE of A: UCI options of an engine (Hash=16), or of our search (c_puct=2 algorithm=gumbel)."""
    b_option: tuple[str, ...] = ()
    """NAME=VALUE of B."""
    config: tyro.conf.OmitArgPrefixes[ArenaConfig] = field(default_factory=ArenaConfig)
    """The match."""

    def run(self) -> dict[str, Any]:
        """Play and give the summary."""
        from pipeline.matches.arena import arena

        stop = Interrupt()
        with bar("arena") as progress:
            summary = arena(*self.sides(), self.config, self.out, progress=progress, stop=stop)
        if not summary["finished"]:
            raise Stopped(f"stopped after {summary['games']} games; run the same command to continue")
        return {**summary, "out": str(self.out)}

    def sides(self) -> tuple[SideConfig, SideConfig]:
        """Give what each player plays with."""
        timed_b = self.movetime_b is not None or self.tc_b is not None
        first = SideConfig(
            who=self.a,
            simulations=self.simulations,
            nodes=self.nodes,
            movetime=self.movetime,
            tc=self.tc,
            options=self.a_option,
        )
        second = SideConfig(
            who=self.b,
            simulations=self.simulations_b or self.simulations,
            nodes=self.nodes_b or self.nodes,
            movetime=self.movetime_b if timed_b else self.movetime,
            tc=self.tc_b if timed_b else self.tc,
            options=self.b_option,
        )
        return first, second


@dataclass(frozen=True, kw_only=True, slots=True)
class Ladder(Common):
    """Measure a player's strength: matches at several simulation counts against Stockfish and the hand-written player.

    Every match has a directory of its own and is continued if it was stopped; the table is written as table.md and
    ladder.json. With `--tc` there is one row an opponent instead: the player, the hand-written one and the engine of
    limited strength play on that clock, and the engine at fixed nodes does without.
    """

    who: tyro.conf.Positional[str]
    """The player: a checkpoint's directory, hand-written, uniform or policy:X; on a clock uci:COMMAND too."""
    out: Path
    """Directory of the matches and the table."""
    simulations: tuple[int, ...] = (16, 64, 256)
    """Simulations of the player's moves, a row each."""
    hand_written: int = 400
    """Simulations of the hand-written opponent; 0 for none."""
    engine: str = "stockfish"
    """Command of the engine."""
    nodes: tuple[int, ...] = (100, 1000, 10000)
    """Nodes of the engine's moves, an opponent each."""
    elo: tuple[int, ...] = ()
    """Strengths that the engine is limited to (UCI_Elo) at `elo_nodes`, an opponent each."""
    elo_nodes: int = 50_000
    """Nodes of the engine's moves when its strength is limited, but for a clock."""
    tc: str | None = None
    """Clocks, as seconds+increment (10+0.1) or moves/seconds (40/60), instead of simulations."""
    config: tyro.conf.OmitArgPrefixes[ArenaConfig] = field(default_factory=ArenaConfig)
    """Every match."""

    def run(self) -> dict[str, Any]:
        """Play every match and give the table."""
        from pipeline.matches.ladder import ladder, opponents

        stop = Interrupt()
        against = opponents(self.engine, self.nodes, self.elo, self.elo_nodes, self.hand_written, self.tc)
        rungs = tuple(self.simulations) if self.tc is None else (self.tc,)
        with bar("ladder") as progress:
            return ladder(self.who, rungs, against, self.config, self.out, progress=progress, stop=stop)


@dataclass(frozen=True, kw_only=True, slots=True)
class Judge(Common):
    """Weigh players move by move on positions that a strong engine has judged: far quicker than matches, and less certain.

    A player is a checkpoint's directory, `hand-written` or `uniform`; options after a comma are its search's, as in
    `datasets/embedded,simulations=16,algorithm=gumbel`. Losses are expected score given away against the best move: by
    drawing from the policy, by the policy that self-play would record, by the move played. Judgements are kept in --out
    and used again; a judging that was stopped is continued by the same command.
    """

    players: tyro.conf.Positional[tuple[str, ...]]
    """The players; the first is whom the others are compared with."""
    pgn: Path
    """Games to draw positions from, two a game at most."""
    out: Path
    """Directory of the judgements."""
    positions: int = 1000
    """Positions to judge."""
    engine: str = "stockfish"
    """Command of the engine that judges."""
    depth: int = 9
    """Depth to which it searches every move."""
    seed: int = 0
    """Of the positions drawn."""
    workers: int = 0
    """Engines side by side; 0 for one a core."""

    def run(self) -> dict[str, Any]:
        """Judge what is not judged yet, weigh, and give the table."""
        from pipeline.executors.local import available_cores
        from pipeline.matches.judge import judging, searchers, text_of, weigh
        from pipeline.matches.judgements import judged

        sides, command, stop = [_side(words) for words in self.players], judging(self.engine), Interrupt()
        players = searchers(sides)  # before minutes of judging, for what is wrong with their options
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
    """Read PLAYER,NAME=VALUE,..."""
    who, *options = words.split(",")
    given = [option for option in options if option.startswith("simulations=")]
    rest = tuple(option for option in options if option not in given)
    if not given:
        return SideConfig(who=who, options=rest)
    try:
        return SideConfig(who=who, simulations=int(given[-1].partition("=")[2]), options=rest)
    except ValueError as error:
        raise PlayerError(f"{who}: simulations is a number, not {given[-1]!r}") from error
