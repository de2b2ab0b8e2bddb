"""Options of the UCI engine: values, bounds and UCI names."""

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
"""How the protocol writes an empty string."""

STRENGTH_LADDER = ((1000, 900), (1400, 1120), (1800, 1320), (2200, 1700), (2600, 1860))
"""Pairs of a rating in the style human-strength and its measured strength on the scale of
Stockfish's UCI_Elo (docs/playing.md)."""
ELO_BOUNDS = (STRENGTH_LADDER[0][1], STRENGTH_LADDER[-1][1])


class OptionError(UserError):
    """An unknown option or an invalid value."""


class OptionSpec(NamedTuple):
    """Description of an option in the protocol: name, bounds of a number, choices of a text."""

    name: str
    minimum: float = 0
    maximum: float = 0
    choices: tuple[str, ...] = ()


def _make_option(default: Any, *spec: Any) -> Any:
    return field(default=default, metadata={"spec": OptionSpec(*spec)})


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    """Values of the UCI options."""

    threads: int = _make_option(1, "Threads", 1, 1024)
    """Threads that the network may use."""
    hash: int = _make_option(512, "Hash", 1, 65536)
    """Maximum size of the search tree, in MiB."""
    multipv: int = _make_option(1, "MultiPV", 1, 218)
    """Number of variations to show."""
    ponder: bool = _make_option(False, "Ponder")
    """Whether the GUI may ponder; it has no effect here, since each `go` says whether to ponder."""
    show_wdl: bool = _make_option(False, "UCI_ShowWDL")
    """Show win, draw and loss, in permille, with every score."""
    style: str = _make_option(
        "search", "Style", 0, 0, ("search", "human", "human-strength", "policy")
    )
    """How to choose moves: by search, like human players of `rating` (human), as strongly as they
    play (human-strength, see engine/search/human.py), or by the policy alone."""
    rating: int = _make_option(0, "Rating", 0, 4000)
    """Rating of both players in styles other than search, on the scale of the network's training
    games; 0 if unknown."""
    speed: str = _make_option("auto", "Game Speed", 0, 0, ("auto", *SPEEDS))
    """Speed of the game, for networks that read the time control, in styles other than search; auto
    reads it from the clock."""
    limit_strength: bool = _make_option(False, "UCI_LimitStrength")
    """Play at `elo` in the style human-strength; overrides `style` and `rating`."""
    elo: int = _make_option(1500, "UCI_Elo", *ELO_BOUNDS)
    """Strength on the scale of Stockfish's UCI_Elo, measured with the embedded network
    (docs/playing.md)."""
    simulations: int = _make_option(0, "Simulations", 0, 1_000_000_000)
    """Maximum simulations per move; 0 for no limit, or in human styles for the number with which
    they were fitted."""
    c_puct: float = _make_option(SearchConfig().c_puct, "CPuct", 0, 100)
    """Weight of exploration in the search."""
    temperature: float = _make_option(0.0, "Temperature", 0, 100)
    """Temperature in the styles search and policy: 0 plays the best move, 1 samples in proportion
    to the search's visits or the policy's probabilities."""
    seed: int = _make_option(0, "Seed", 0, 2**31 - 1)
    """Random seed of searches and sampled moves."""
    leaves: int = _make_option(8, "Leaves", 1, 256)
    """Maximum positions per batch if only time limits the search; with a limit on nodes or
    simulations, positions are evaluated one at a time."""
    overhead: int = _make_option(20, "Move Overhead", 0, 10_000)
    """Milliseconds lost per move between engine and GUI."""
    checkpoint: str = _make_option("", "Checkpoint")
    """Directory of a checkpoint that replaces the one given at the start."""

    @property
    def usable_threads(self) -> int:
        """Threads for the network, at most one per core; starting 1,000 would take a minute."""
        return min(self.threads, count_cores())

    @property
    def human(self) -> Aim | None:
        """Objective of human search, or None in other styles."""
        if self.limit_strength or self.style == "human-strength":
            return "strength"
        return "likelihood" if self.style == "human" else None

    @property
    def time_control(self) -> tuple[int, int] | None:
        """Base and increment of the chosen speed, in seconds; None for auto."""
        return SPEEDS.get(self.speed)

    @property
    def played_rating(self) -> int:
        """Rating of both players, computed from `elo` if strength is limited; 0 if unknown."""
        if not self.limit_strength:
            return self.rating
        ratings, elos = zip(*STRENGTH_LADDER, strict=True)
        return round(float(np.interp(self.elo, elos, ratings)))

    def search_config(self) -> SearchConfig:
        """Return the search configuration; its `leaves` are a maximum, which short moves lower."""
        return SearchConfig(
            nodes=count_nodes_in(self.hash << 20), c_puct=self.c_puct, leaves=self.leaves
        )


def count_nodes_in(memory: int) -> int:
    """Return how many nodes fit in `memory` bytes with their scratch memory, at least 256."""
    fixed = 2 * tree_bytes(0)
    return max((memory - fixed) // (2 * tree_bytes(1) - fixed), 256)


OPTION_SPECS: dict[str, OptionSpec] = {
    option.name: option.metadata["spec"] for option in fields(Options)
}
"""Descriptions of the options by the name of their field."""
_UCI_TYPES = {int: "spin", bool: "check", str: "string", float: "string"}


def describe_options(options: Options) -> list[str]:
    """Return the `option` lines of the reply to `uci`, with `options` as defaults."""
    lines = []
    for field_name, spec in OPTION_SPECS.items():
        value = getattr(options, field_name)
        kind = "combo" if spec.choices else _UCI_TYPES[type(value)]
        text = str(value).lower() if kind == "check" else str(value) or EMPTY_STRING
        bounds = f" min {spec.minimum:.0f} max {spec.maximum:.0f}" if kind == "spin" else ""
        bounds += "".join(f" var {choice}" for choice in spec.choices)
        lines.append(f"option name {spec.name} type {kind} default {text}{bounds}")
    return lines


def set_option(options: Options, name: str, value: str | None) -> Options:
    """Return the options with one changed, or raise OptionError; the case of names is ignored."""
    for field_name, spec in OPTION_SPECS.items():
        if spec.name.lower() == name.lower():
            parsed = _parse_value(spec, type(getattr(options, field_name)), value or "")
            return replace(options, **{field_name: parsed})
    raise OptionError(f"no such option: {quote(name)}")


def _parse_value(spec: OptionSpec, kind: type, text: str) -> Any:
    if spec.choices:
        if text.lower() not in spec.choices:
            raise OptionError(
                f"{spec.name} must be one of {', '.join(spec.choices)}, not {quote(text)}"
            )
        return text.lower()
    if kind is str:
        return "" if text == EMPTY_STRING else text
    if kind is bool:
        if text.lower() not in ("true", "false"):
            raise OptionError(f"{spec.name} must be true or false, not {quote(text)}")
        return text.lower() == "true"
    try:
        number = kind(text)
    except ValueError:
        number = math.nan
    if not spec.minimum <= number <= spec.maximum:
        bounds = f"between {spec.minimum:.0f} and {spec.maximum:.0f}"
        raise OptionError(f"{spec.name} must be {bounds}, not {quote(text)}")
    return number
