"""The engine's options: their values, bounds and UCI names."""

import math
from dataclasses import dataclass, field, fields, replace
from typing import Any, NamedTuple

import numpy as np

from engine.cores import count_cores
from engine.errors import UserError
from engine.player.policy import SPEEDS
from engine.search import SearchConfig
from engine.search.human import Aim
from engine.search.tree import tree_bytes
from engine.uci.commands import quote

EMPTY_STRING = "<empty>"
"""The protocol's notation of an empty string."""

LADDER = ((1000, 900), (1400, 1120), (1800, 1320), (2200, 1700), (2600, 1860))
"""Ratings in the style human-strength, and the measured strength of each on the scale of
Stockfish's UCI_Elo (docs/playing.md)."""
ELO_BOUNDS = (LADDER[0][1], LADDER[-1][1])


class OptionError(UserError):
    """An unknown option or an invalid value."""


class OptionSpec(NamedTuple):
    """Protocol description of an option: name, and bounds of a number or choices of a text."""

    name: str
    minimum: float = 0
    maximum: float = 0
    choices: tuple[str, ...] = ()


def _option(default: Any, *row: Any) -> Any:
    """Return a field of Options with its default and its OptionSpec."""
    return field(default=default, metadata={"row": OptionSpec(*row)})


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    """Values of the UCI options."""

    threads: int = _option(1, "Threads", 1, 1024)
    """Threads that the network may use."""
    hash: int = _option(512, "Hash", 1, 65536)
    """Maximum size of the search tree, in megabytes."""
    multipv: int = _option(1, "MultiPV", 1, 218)
    """Number of variations to show."""
    ponder: bool = _option(False, "Ponder")
    """Advertise pondering; it has no other effect, since each `go` says whether to ponder."""
    show_wdl: bool = _option(False, "UCI_ShowWDL")
    """Show win, draw and loss in permille with every score."""
    style: str = _option("search", "Style", 0, 0, ("search", "human", "human-strength", "policy"))
    """search: the best move. human: like human players of `rating`; human-strength: equally
    strong (engine/search/human.py). policy: the policy's likeliest move, or sampled at
    `temperature`."""
    rating: int = _option(0, "Rating", 0, 4000)
    """Rating of both players in styles other than search, on the scale of the network's training
    games; 0 is unknown."""
    speed: str = _option("auto", "Game Speed", 0, 0, ("auto", *SPEEDS))
    """Speed of the game, for networks that read it, in styles other than search; auto takes the
    time control from the clock."""
    limit_strength: bool = _option(False, "UCI_LimitStrength")
    """Play at `elo` in the style human-strength; overrides `style` and `rating`."""
    elo: int = _option(1500, "UCI_Elo", *ELO_BOUNDS)
    """Strength on the scale of Stockfish's UCI_Elo, measured with the embedded network
    (docs/playing.md)."""
    simulations: int = _option(0, "Simulations", 0, 1_000_000_000)
    """Maximum simulations per move; 0 for no limit, or in human styles for the number used in their
    fit."""
    c_puct: float = _option(SearchConfig().c_puct, "CPuct", 0, 100)
    """Weight of the exploration term."""
    temperature: float = _option(0.0, "Temperature", 0, 100)
    """0 plays the best move; 1 samples in proportion to the search's visits or, without a search,
    to the policy's probabilities."""
    seed: int = _option(0, "Seed", 0, 2**31 - 1)
    """Random seed of searches and sampled moves."""
    leaves: int = _option(8, "Leaves", 1, 256)
    """Positions per batch if time is the limit; with fixed nodes, positions are evaluated one at a
    time."""
    overhead: int = _option(20, "Move Overhead", 0, 10_000)
    """Milliseconds lost per move between engine and GUI."""
    checkpoint: str = _option("", "Checkpoint")
    """Directory of a checkpoint that replaces the one given at the start."""

    @property
    def usable_threads(self) -> int:
        """Threads for the network, limited to the cores, since starting 1,000 takes a minute."""
        return min(self.threads, count_cores())

    @property
    def human(self) -> Aim | None:
        """Objective of human search; None in other styles."""
        if self.limit_strength or self.style == "human-strength":
            return "strength"
        return "likelihood" if self.style == "human" else None

    @property
    def time_control(self) -> tuple[int, int] | None:
        """Base and increment in seconds of the chosen speed; None for auto."""
        return SPEEDS.get(self.speed)

    @property
    def played_rating(self) -> int:
        """Rating of both players, derived from `elo` if strength is limited; 0 is unknown."""
        if not self.limit_strength:
            return self.rating
        ratings, levels = zip(*LADDER, strict=True)
        return round(float(np.interp(self.elo, levels, ratings)))

    def search_config(self) -> SearchConfig:
        """Return the search configuration; its `leaves` is the maximum per round."""
        return SearchConfig(
            nodes=max_nodes_in(self.hash << 20), c_puct=self.c_puct, leaves=self.leaves
        )


def max_nodes_in(memory: int) -> int:
    """Return how many nodes fit in `memory` bytes, including scratch memory; at least 256."""
    fixed = 2 * tree_bytes(0)
    return max((memory - fixed) // (2 * tree_bytes(1) - fixed), 256)


OPTION_SPECS: dict[str, OptionSpec] = {
    option.name: option.metadata["row"] for option in fields(Options)
}
"""Protocol descriptions by field name."""
_TYPES = {int: "spin", bool: "check", str: "string", float: "string"}


def describe_options(options: Options) -> list[str]:
    """Return the `option` lines, with `options` as defaults."""
    lines = []
    for field_name, row in OPTION_SPECS.items():
        value = getattr(options, field_name)
        kind = "combo" if row.choices else _TYPES[type(value)]
        text = str(value).lower() if kind == "check" else str(value) or EMPTY_STRING
        bounds = f" min {row.minimum:.0f} max {row.maximum:.0f}" if kind == "spin" else ""
        bounds += "".join(f" var {choice}" for choice in row.choices)
        lines.append(f"option name {row.name} type {kind} default {text}{bounds}")
    return lines


def set_option(options: Options, name: str, value: str | None) -> Options:
    """Return the options with one changed, or raise OptionError; names ignore case."""
    for field_name, row in OPTION_SPECS.items():
        if row.name.lower() == name.lower():
            parsed = _parse(row, type(getattr(options, field_name)), value or "")
            return replace(options, **{field_name: parsed})
    raise OptionError(f"no such option: {quote(name)}")


def _parse(row: OptionSpec, kind: type, text: str) -> Any:
    if row.choices:
        if text.lower() not in row.choices:
            raise OptionError(
                f"{row.name} must be one of {', '.join(row.choices)}, not {quote(text)}"
            )
        return text.lower()
    if kind is str:
        return "" if text == EMPTY_STRING else text
    if kind is bool:
        if text.lower() not in ("true", "false"):
            raise OptionError(f"{row.name} must be true or false, not {quote(text)}")
        return text.lower() == "true"
    try:
        number = kind(text)
    except ValueError:
        number = math.nan
    if not row.minimum <= number <= row.maximum:
        raise OptionError(
            f"{row.name} must be between {row.minimum:.0f} and {row.maximum:.0f}, not {quote(text)}"
        )
    return number
