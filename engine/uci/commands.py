"""The protocol's input: parse one line of text into a command, and report unreadable parts.

As the protocol asks, unknown words before a command are skipped. A number that cannot be read
counts as 0, so a damaged `go` is answered at once.
"""

import re
from collections import deque
from dataclasses import dataclass, field

from engine.errors import UserError
from engine.player.clock import Limits

COMMANDS = frozenset(
    (
        "uci",
        "isready",
        "ucinewgame",
        "position",
        "go",
        "stop",
        "ponderhit",
        "setoption",
        "quit",
        "debug",
        "register",
    )
)
_MOVE = re.compile(r"[a-h][1-8][a-h][1-8][nbrqNBRQ]?|0000")
_OPTION = re.compile(r"name\s+(?P<name>.*?)(?:\s+value(?:\s+(?P<value>.*))?)?", re.DOTALL)
_NUMBERS = ("nodes", "depth", "mate", "movestogo", "movetime", "wtime", "btime", "winc", "binc")
_KEYWORDS = frozenset((*_NUMBERS, "infinite", "ponder", "searchmoves"))


class CommandError(UserError):
    """A line that is not a command, or an incomplete one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Go:
    """Limits of a `go`; times in milliseconds, None where not given."""

    nodes: int | None = None
    """Simulations."""
    depth: int | None = None
    """Plies of the principal variation."""
    mate: int | None = None
    """Stop when a mate in so many moves is found."""
    movestogo: int | None = None
    """Moves until the next time control."""
    movetime: int | None = None
    """Think exactly this long."""
    wtime: int | None = None
    """White's clock."""
    btime: int | None = None
    """Black's clock."""
    winc: int | None = None
    """Added to White's clock after every move."""
    binc: int | None = None
    """Added to Black's clock after every move."""
    infinite: bool = False
    """Think until `stop`."""
    ponder: bool = False
    """Think on the opponent's time, until `ponderhit` or `stop`."""
    searchmoves: tuple[str, ...] = ()
    """Only these moves."""
    problems: tuple[str, ...] = field(default=(), compare=False)
    """One message for each unreadable part."""

    def limits(self, white: bool) -> Limits:
        """Return the mover's limits in seconds; the opponent's clock if it is the only one."""
        sides = ((self.wtime, self.winc), (self.btime, self.binc))
        left, increment = sides[0 if white else 1]
        if left is None:
            left = sides[1 if white else 0][0]
        return Limits(
            movetime=None if self.movetime is None else self.movetime / 1000,
            left=None if left is None else left / 1000,
            increment=(increment or 0) / 1000,
            moves_to_go=self.movestogo,
        )


def quote(text: str, most: int = 80) -> str:
    """Quote a piece of input in ASCII, shortened if long."""
    return ascii(text if len(text) <= most else text[:most] + "...")


def split(line: str) -> tuple[str, str]:
    """Return a line's command and its arguments; `("", "")` for a blank line.

    Raises CommandError without a command.
    """
    for word in re.finditer(r"\S+", line):
        if word[0] in COMMANDS:
            return word[0], line[word.end() :].strip()
    if line.strip():
        raise CommandError(f"unknown command {quote(line.strip())}")
    return "", ""


def _number(text: str) -> int | None:
    """Parse a number, truncated to an integer of 64 bits; None if it is not one."""
    try:
        return max(min(int(float(text)), 2**63 - 1), -(2**63))
    except (ValueError, OverflowError):
        return None


def parse_go(rest: str) -> Go:
    """Parse the arguments of `go`."""
    words = deque(rest.split())
    values: dict[str, int | bool] = {}
    moves: list[str] = []
    problems = []
    while words:
        word = words.popleft()
        if word in ("infinite", "ponder"):
            values[word] = True
        elif word == "searchmoves":
            while words and _MOVE.fullmatch(words[0]):
                moves.append(words.popleft())
        elif word in _NUMBERS:
            number = None if not words or words[0] in _KEYWORDS else _number(words.popleft())
            if number is None:
                problems.append(f"go: {word} without a number is taken as 0")
            values[word] = number or 0
        else:
            problems.append(f"go: skipped {quote(word)}")
    return Go(**values, searchmoves=tuple(moves), problems=tuple(problems))  # type: ignore[arg-type]


def parse_position(rest: str) -> tuple[str | None, list[str]]:
    """Parse the arguments of `position`: FEN (None: the starting position) and moves."""
    setup, found, moves = re.sub(r"\s+", " ", rest).partition(" moves ")
    if not found and setup.endswith(" moves"):
        setup = setup.removesuffix(" moves")
    kind, _, fen = setup.partition(" ")
    if kind == "startpos":
        return None, moves.split()
    if kind == "fen" and fen:
        return fen, moves.split()
    raise CommandError(f"position is startpos or fen, not {quote(rest)}")


def parse_option(rest: str) -> tuple[str, str | None]:
    """Parse the arguments of `setoption`: name and value, None without a value."""
    found = _OPTION.fullmatch(rest)
    if found is None or not found["name"]:
        raise CommandError(f"setoption needs: name NAME value VALUE, not {quote(rest)}")
    return found["name"].strip(), found["value"]
