"""The engine's options: one frozen dataclass of their values, one table of how the protocol shows them."""

import math
import os
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from engine.errors import UserError
from engine.search import SearchConfig
from engine.search.tree import tree_bytes
from engine.uci.commands import quote

NOTHING = "<empty>"
"""How the protocol writes an empty string."""
MEGABYTE = 1 << 20


class OptionError(UserError):
    """An unknown option, or a value out of its bounds."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    """The values that a GUI has set."""

    threads: int = 1
    """Threads that the network may use."""
    hash: int = 512
    """Megabytes of the search tree, at most."""
    multipv: int = 1
    """Lines that are shown."""
    ponder: bool = False
    """Whether the GUI may ponder; every `go` says whether it does, so nothing here depends on it."""
    show_wdl: bool = False
    """Show win, draw and loss in permille with every score."""
    policy: bool = False
    """Play a move of the evaluator's policy, without search: the likeliest, or one drawn at `temperature`."""
    rating: int = 0
    """Rating of both players, on the scale of the games a network has learned from; 0 is unknown."""
    simulations: int = 0
    """Simulations of a move at most, 0 for no such bound."""
    c_puct: float = SearchConfig().c_puct
    """Weight of exploration by priors."""
    temperature: float = 0.0
    """0 plays the best move, 1 in proportion to the search's visits, or by the policy's probabilities."""
    seed: int = 0
    """Random seed of searches and of moves drawn from the policy."""
    leaves: int = 8
    """Positions that go to the evaluator at once where time is the limit; fixed nodes are searched one by one."""
    overhead: int = 20
    """Milliseconds of every move that are lost between engine and GUI."""
    checkpoint: str = ""
    """Directory of a checkpoint to play with instead of the one that the engine was started with."""

    @property
    def usable_threads(self) -> int:
        """Threads for the network: no more than there are cores, since starting a thousand takes a minute."""
        return min(self.threads, os.cpu_count() or 1)

    def search(self) -> SearchConfig:
        """Return the configuration of a search; its `leaves` are the most that a round may have."""
        return SearchConfig(nodes=nodes_in(self.hash * MEGABYTE), c_puct=self.c_puct, leaves=self.leaves)


def nodes_in(memory: int) -> int:
    """Return how many nodes a tree of so many bytes holds, with the scratch space for advancing it; at least 256."""
    fixed = 2 * tree_bytes(0)
    return max((memory - fixed) // (2 * tree_bytes(1) - fixed), 256)


class Row(NamedTuple):
    """One option as the protocol shows it; a fraction is a string to the protocol, which has none."""

    name: str
    least: float = 0
    """Smallest value of a number."""
    most: float = 0
    """Largest value of a number."""


ROWS = {
    "threads": Row("Threads", 1, 1024),
    "hash": Row("Hash", 1, 65536),
    "multipv": Row("MultiPV", 1, 218),
    "ponder": Row("Ponder"),
    "show_wdl": Row("UCI_ShowWDL"),
    "policy": Row("Policy"),
    "rating": Row("Rating", 0, 4000),
    "simulations": Row("Simulations", 0, 1_000_000_000),
    "c_puct": Row("CPuct", 0, 100),
    "temperature": Row("Temperature", 0, 100),
    "seed": Row("Seed", 0, 2**31 - 1),
    "leaves": Row("Leaves", 1, 256),
    "overhead": Row("Move Overhead", 0, 10_000),
    "checkpoint": Row("Checkpoint"),
}
"""Options by their field."""
_TYPES = {int: "spin", bool: "check", str: "string", float: "string"}


def describe_options(options: Options) -> list[str]:
    """Write the `option` lines, with these options as the defaults."""
    return [_line(row, getattr(options, field)) for field, row in ROWS.items()]


def _line(row: Row, value: Any) -> str:
    kind = _TYPES[type(value)]
    text = str(value).lower() if kind == "check" else str(value) or NOTHING
    bounds = f" min {row.least:.0f} max {row.most:.0f}" if kind == "spin" else ""
    return f"option name {row.name} type {kind} default {text}{bounds}"


def set_option(options: Options, name: str, value: str | None) -> Options:
    """Return the options with one of them set as a GUI sent it, or raise OptionError; case matters in paths only."""
    for field, row in ROWS.items():
        if row.name.lower() == name.lower():
            return replace(options, **{field: _parse(row, type(getattr(options, field)), value or "")})
    raise OptionError(f"no such option: {quote(name)}")


def _parse(row: Row, kind: type, text: str) -> Any:
    if kind is str:
        return "" if text == NOTHING else text
    if kind is bool:
        if text.lower() not in ("true", "false"):
            raise OptionError(f"{row.name} is true or false, not {quote(text)}")
        return text.lower() == "true"
    try:
        number = kind(text)
    except ValueError:
        number = math.nan
    if not row.least <= number <= row.most:
        raise OptionError(f"{row.name} is between {row.least:.0f} and {row.most:.0f}, not {quote(text)}")
    return number
