"""The command that measures playing strength: arena."""

import re
from dataclasses import field
from pathlib import Path
from typing import Any, ClassVar

from engine.match import PlayerError
from model.settings import settings
from pipeline.cli.commands.base import Common, Interrupt
from pipeline.cli.progress import bar
from pipeline.errors import ConfigError
from pipeline.matches.config import ArenaConfig, SideConfig

LIMITS = {"simulations": int, "nodes": int, "movetime": int, "tc": str}
"""Limits that may follow a player's name, beside options of its search or engine."""


@settings(ConfigError)
class Arena(Common):
    """Play matches between players. Stopped matches continue; a larger --games extends them.

    A player is a checkpoint's directory, `onnx:DIR` (its model.onnx), `hand-written`, `uniform`,
    `policy:X` (one of these without search) or `uci:COMMAND`. Its own limits and options follow
    after commas: `onnx:DIR,simulations=16,c_puct=2`, `onnx:DIR,rating=1800` (moves as people of
    that rating play) or `uci:stockfish,nodes=1000,Hash=16`. A match writes games.pgn, games.jsonl
    and summary.json. More than two players play a round robin, in directories below --out, and
    table.md has the Elo differences.
    """

    arguments: ClassVar = {"players": "PLAYER..."}
    basic: ClassVar = "out games simulations nodes movetime tc book early concurrency seed"

    players: tuple[str, ...]
    """Players: a checkpoint's directory, onnx:DIR, hand-written, uniform, policy:X or uci:COMMAND.
    Limits and options follow after commas: uci:stockfish,nodes=1000."""
    out: Path
    """Directory of the match or matches."""
    simulations: int = 64
    """Simulations per move of checkpoints and evaluators."""
    nodes: int | None = None
    """Nodes per move of UCI engines."""
    movetime: int | None = None
    """Milliseconds per move, instead of simulations and nodes."""
    tc: str | None = None
    """Clock as seconds+increment (10+0.1) or moves/seconds (40/60), instead of simulations and
    nodes."""
    match: ArenaConfig = field(default_factory=ArenaConfig)
    """How a match is played."""

    def run(self) -> dict[str, Any]:
        """Play, and return the summary of a match or the table of several."""
        from pipeline.matches.arena import arena

        limits, stop = {name: getattr(self, name) for name in LIMITS}, Interrupt()
        sides = [parse_player(words, **limits) for words in self.players]
        with bar("arena") as progress:
            result = arena(sides, self.match, self.out, progress=progress, stop=stop)
        return {**result, "out": str(self.out)}


def parse_player(words: str, **limits: Any) -> SideConfig:
    """Parse PLAYER,NAME=VALUE,...; the player's own limits replace those in `limits`."""
    who, *options = re.split(r",(?=[^,=]+=)", words)
    own = {
        name: value
        for name, _, value in (option.partition("=") for option in options)
        if name in LIMITS
    }
    if {"movetime", "tc"} & own.keys():
        limits = {name: value for name, value in limits.items() if name not in ("movetime", "tc")}
    try:
        limits |= {name: LIMITS[name](value) for name, value in own.items()}
    except ValueError:
        raise PlayerError(
            f"{words}: simulations, nodes and movetime must be whole numbers"
        ) from None
    return SideConfig(
        who=who,
        options=tuple(option for option in options if option.partition("=")[0] not in LIMITS),
        **limits,
    )
