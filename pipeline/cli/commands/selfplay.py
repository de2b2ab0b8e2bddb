"""Commands that make networks play: selfplay, finetune, arena."""

import re
from dataclasses import field, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from engine.match import PlayerError
from model.settings import Count, settings
from pipeline.cli.commands.base import BaseCommand
from pipeline.cli.endings import suggest_command
from pipeline.errors import ConfigError
from pipeline.finetune.config import FinetuneConfig
from pipeline.matches.config import ArenaConfig, SideConfig
from pipeline.selfplay.config import ExploreConfig

PLAYER_LIMITS = {"simulations": int, "nodes": int, "movetime": int, "tc": str}
"""Limits that may follow a player's name after a comma, with the types of their values."""


@settings(ConfigError)
class SelfPlay(BaseCommand):
    """Make a dataset of searched positions, from games of self-play or from other datasets.

    The shards are like those of `fianchetto ingest`, with the search's policy and values added.
    Self-play also writes games.pgn and games.jsonl.

    --reanalyse instead samples positions from the train splits of datasets, in fixed shares of
    openings, middlegames and endgames, and prefers positions that are not yet won or lost.
    `--source near` searches positions a few random moves away from those. Both need more
    simulations than self-play: `--simulations 128 --set explore.search.max_considered_actions=16`.
    Run the same command again to continue.
    """

    basic: ClassVar = (
        "checkpoint out reanalyse finished_only games count source explorer simulations seed width"
        " device workers engine"
    )

    checkpoint: Path | None = None
    """Directory of the checkpoint that plays or searches; not needed with --explorer
    hand-written."""
    out: Path
    """Directory of the dataset."""
    reanalyse: tuple[Path, ...] = ()
    """Datasets or training sets whose positions are searched, instead of playing games."""
    explore: ExploreConfig = field(default_factory=ExploreConfig)
    """Self-play or search: number of games or positions, player and search."""
    finished_only: bool = False
    """Make the dataset from the games and searches finished so far, without new ones."""
    workers: Count = 0
    """Worker processes; 0 for one per core, or fewer if memory for a GPU is short."""
    engine: str = "local"
    """Where to run: local, ray (starts Ray on this machine), or a cluster as ray:HOST:PORT or
    ray://HOST:PORT whose nodes share --out."""

    def run(self) -> dict[str, Any]:
        """Play or search, and return the manifest's summary."""
        from pipeline.dataset.files.columns import MANIFEST
        from pipeline.selfplay.dataset import format_summary
        from pipeline.selfplay.job import explore

        was_complete = (self.out / MANIFEST).exists()
        config = self.explore
        if self.reanalyse and config.source == "games":
            config = replace(config, source="people")
        work = partial(explore, self.checkpoint, config, self.out, datasets=self.reanalyse)
        work = partial(work, engine=self.engine, workers=self.workers)
        manifest = self.call_with_progress(partial(work, finished_only=self.finished_only))
        shown = ("selfplay", "positions", "lineage", "games", "config")
        summary = {name: manifest[name] for name in shown}
        unchanged = " already: nothing was done" if was_complete else ""
        lines = [f"{self.out} is complete{unchanged}", format_summary(manifest)]
        if config.plays_games:
            start = () if self.checkpoint is None else ("--start", self.checkpoint)
            checkpoint = f"datasets/checkpoints/{self.out.name}"
            options = ("--positions", self.out, *start, "--minutes", 15, "--out", checkpoint)
            lines.append(suggest_command("train", *options))
        return {"out": str(self.out), **summary, "text": "\n".join(lines)}


@settings(ConfigError)
class Finetune(BaseCommand):
    """Improve a checkpoint by its own search, generation by generation.

    In each generation the best network searches positions of --positions. A candidate is trained
    on the results and on human moves, and plays the best network in a match that ends by SPRT.
    It is promoted if it wins, does not lose to the supervised checkpoint, and still predicts
    human moves. A generation takes an hour or two on two cores. Run the same command again to
    continue.

    First, the network's search is compared with the hand-written player's on held-out games. If
    the hand-written player errs less, the loop learns the value from it; otherwise it trains on
    human rows alone. --teach overrides this choice. If the hand-written player teaches, settings
    that keep their defaults are adapted to the number of human rows. With `--games-share 1`, the
    network plays games instead of searching positions. With `--explorer hand-written`, the
    hand-written player searches or plays instead. OUT/best is an ordinary checkpoint;
    generations.csv has a row for each generation.
    """

    basic: ClassVar = (
        "checkpoint positions out generations minutes workers engine games_share near_share "
        "explorer teach seed"
    )

    checkpoint: Path
    """Directory of the supervised checkpoint to start from."""
    out: Path
    """Directory for the best checkpoint and a folder for each generation."""
    positions: tuple[Path, ...] = ()
    """Human games (datasets or training sets) to search, to train on, and to measure top-1 on."""
    finetune: FinetuneConfig
    """Settings of the loop."""

    def run(self) -> dict[str, Any]:
        """Run the loop until its generations or minutes are reached, and return the result."""
        from pipeline.finetune.loop import finetune

        work = partial(finetune, self.checkpoint, self.finetune, self.out, human=self.positions)
        result = self.call_with_progress(work)
        if not result["generation"]:
            return result
        match = ("--simulations", 64, "--games", 100, "--out", f"{self.out}-match")
        suggestion = suggest_command("arena", result["best"], self.out / "seed", *match)
        return result | {"text": f"{result['text']}\n{suggestion}"}


@settings(ConfigError)
class Arena(BaseCommand):
    """Play matches between players. Run the same command again to continue or extend them.

    A player is a checkpoint's directory, `onnx:DIR` (its model.onnx), `hand-written`, `uniform`,
    `policy:X` (one of these without search) or `uci:COMMAND`. Its own limits and options follow
    after commas: `onnx:DIR,simulations=16,c_puct=2`, `onnx:DIR,rating=1800` (moves as players of
    that rating do) or `uci:stockfish,nodes=1000,Hash=16`. A match writes games.pgn, games.jsonl
    and summary.json. More than two players play a round robin, in directories below --out, and
    table.md has the Elo differences.
    """

    arguments: ClassVar = {"players": "PLAYER..."}
    basic: ClassVar = "out games simulations nodes movetime tc book early concurrency seed"

    players: tuple[str, ...]
    """Players: a checkpoint's directory, onnx:DIR (its model.onnx), hand-written, uniform, policy:X
    (one of these without search) or uci:COMMAND. Limits and options follow after commas, as in
    uci:stockfish,nodes=1000."""
    out: Path
    """Directory of the match or matches."""
    simulations: int = 64
    """Simulations per move of players that search and are not UCI engines."""
    nodes: int | None = None
    """Nodes per move of UCI engines, which need this, --movetime or --tc."""
    movetime: int | None = None
    """Milliseconds per move, instead of simulations and nodes."""
    tc: str | None = None
    """Clock as seconds+increment (10+0.1) or moves/seconds (40/60), instead of simulations and
    nodes."""
    match: ArenaConfig = field(default_factory=ArenaConfig)
    """Number of games, openings, and the test that ends a match early."""

    def run(self) -> dict[str, Any]:
        """Play, and return the summary of a match or the table of several."""
        from pipeline.matches.arena import arena

        limits = {name: getattr(self, name) for name in PLAYER_LIMITS}
        sides = [parse_player(text, **limits) for text in self.players]
        result = self.call_with_progress(partial(arena, sides, self.match, self.out))
        return {**result, "out": str(self.out)}


def parse_player(text: str, **limits: Any) -> SideConfig:
    """Parse PLAYER,NAME=VALUE,...; its own limits override `limits`. Raises PlayerError."""
    who, *assignments = re.split(r",(?=[^,=]+=)", text)
    own_limits: dict[str, str] = {}
    options = []
    for assignment in assignments:
        name, _, value = assignment.partition("=")
        if name in PLAYER_LIMITS:
            own_limits[name] = value
        else:
            options.append(assignment)
    if {"movetime", "tc"} & own_limits.keys():
        limits |= {"movetime": None, "tc": None}
    try:
        limits |= {name: PLAYER_LIMITS[name](value) for name, value in own_limits.items()}
    except ValueError:
        problem = "simulations, nodes and movetime must be whole numbers"
        raise PlayerError(f"{text}: {problem}") from None
    return SideConfig(who=who, options=tuple(options), **limits)
