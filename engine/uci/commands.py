"""Parse UCI commands, and track the game that they describe.

Unknown words before a command are skipped, as the protocol requires. An invalid number is read as
0, so that a malformed `go` is answered immediately.
"""

import re
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import chess

from engine.encoding.planes import LabelError, label_from_move
from engine.errors import UserError
from engine.player.boards import castling_rights_are_kept, parse_playable
from engine.player.clock import Limits

COMMANDS = (
    *("uci", "isready", "ucinewgame", "position", "go", "stop", "ponderhit", "setoption"),
    *("quit", "debug", "register"),
)
_MOVE = re.compile(r"[a-h][1-8][a-h][1-8][nbrqNBRQ]?|0000")
_OPTION = re.compile(r"name\s+(?P<name>.*?)(?:\s+value(?:\s+(?P<value>.*))?)?", re.DOTALL)
_NUMERIC_ARGUMENTS = (
    *("nodes", "depth", "mate", "movestogo", "movetime", "wtime", "btime", "winc", "binc"),
)
_KEYWORDS = frozenset((*_NUMERIC_ARGUMENTS, "infinite", "ponder", "searchmoves"))


class CommandError(UserError):
    """An unknown or incomplete command."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Go:
    """Arguments of `go`, named as in the protocol; times are in ms, and None if not given."""

    nodes: int | None = None
    """Maximum number of simulations."""
    depth: int | None = None
    """Number of plies: the search ends at a principal variation of at least this length."""
    mate: int | None = None
    """Number of moves: the search ends at a proven mate in at most this many."""
    movestogo: int | None = None
    movetime: int | None = None
    wtime: int | None = None
    btime: int | None = None
    winc: int | None = None
    binc: int | None = None
    infinite: bool = False
    ponder: bool = False
    searchmoves: tuple[str, ...] = ()
    problems: tuple[str, ...] = field(default=(), compare=False)
    """Messages about parts that cannot be read."""

    def limits(self, white: bool) -> Limits:
        """Return the mover's limits, in seconds; without its clock, use the opponent's."""
        left, increment = (self.wtime, self.winc) if white else (self.btime, self.binc)
        if left is None:
            left = self.btime if white else self.wtime
        return Limits(
            movetime=None if self.movetime is None else self.movetime / 1000,
            left=None if left is None else left / 1000,
            increment=(increment or 0) / 1000,
            moves_to_go=self.movestogo,
        )


def quote(text: str, max_chars: int = 80) -> str:
    """Quote a piece of input in ASCII, shortened to `max_chars` characters."""
    return ascii(text if len(text) <= max_chars else text[:max_chars] + "...")


def split_command(line: str) -> tuple[str, str]:
    """Split a line into command and arguments, "" if blank; raise CommandError if unknown."""
    for word in re.finditer(r"\S+", line):
        if word[0] in COMMANDS:
            return word[0], line[word.end() :].strip()
    if line.strip():
        raise CommandError(f"unknown command {quote(line.strip())}")
    return "", ""


def _number(text: str) -> int | None:
    """Parse a number as an integer, clipped to 64 bits; None if it is invalid."""
    try:
        return max(min(int(float(text)), 2**63 - 1), -(2**63))
    except (ValueError, OverflowError):
        return None


def parse_go(arguments: str) -> Go:
    """Parse the arguments of `go`."""
    words = deque(arguments.split())
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
        elif word in _NUMERIC_ARGUMENTS:
            number = None if not words or words[0] in _KEYWORDS else _number(words.popleft())
            if number is None:
                problems.append(f"go: {word} has no number, using 0")
            values[word] = number or 0
        else:
            problems.append(f"go: skipped {quote(word)}")
    more = {"searchmoves": tuple(moves), "problems": tuple(problems)}
    return Go(**values, **more)  # type: ignore[arg-type]


def parse_position(arguments: str) -> tuple[str | None, list[str]]:
    """Parse the arguments of `position` into FEN (None for `startpos`) and moves."""
    setup, separator, moves = re.sub(r"\s+", " ", arguments).partition(" moves ")
    if not separator and setup.endswith(" moves"):
        setup = setup.removesuffix(" moves")
    kind, _, fen = setup.partition(" ")
    if kind == "startpos":
        return None, moves.split()
    if kind == "fen" and fen:
        return fen, moves.split()
    raise CommandError(f"position must be startpos or fen, not {quote(arguments)}")


def parse_option(arguments: str) -> tuple[str, str | None]:
    """Parse the arguments of `setoption` into name and value (None if there is no value)."""
    match = _OPTION.fullmatch(arguments)
    if match is None or not match["name"]:
        raise CommandError(
            f"setoption must be followed by name NAME value VALUE, not {quote(arguments)}"
        )
    return match["name"].strip(), match["value"]


class GameState:
    """Game of the last `position`; only new moves are played on its board.

    Replaying all moves would take longer than a fast move at move 200.
    """

    def __init__(self) -> None:
        self.board: chess.Board | None = chess.Board()
        """The game; None after a rejected position."""
        self._start = chess.STARTING_FEN
        self._words: list[str] = []
        self._base: float | None = None

    def drop_position(self) -> None:
        """Drop the position, so that `go` plays no move until the next valid one."""
        self.board, self._start, self._words, self._base = None, "", [], None

    def estimate_base_time(self, go: Go) -> float | None:
        """Return the base time of the game's clock, in seconds; None if `go` has no clock.

        It is estimated as the most time that the mover had at a `go` of this game.
        """
        left = None if self.board is None else go.limits(self.board.turn == chess.WHITE).left
        if left is not None:
            self._base = max(left, self._base or 0.0)
        return None if left is None else self._base

    def update(self, fen: str | None, words: Sequence[str]) -> str:
        """Apply a `position` (None for `startpos`); return a note for the user, or "".

        Raises FenError for a position that cannot be played, and CommandError for an illegal move.
        """
        start, note = fen or chess.STARTING_FEN, ""
        if start != self._start or list(words[: len(self._words)]) != self._words:
            self.drop_position()
            board = parse_playable(start)
            if not castling_rights_are_kept(start, board):
                note = (
                    "castling rights without king and rook on their home squares are ignored: "
                    f"{quote(start)}"
                )
            self.board, self._start = board, start
        assert self.board is not None, "a game without a position has no start"
        for word in words[len(self._words) :]:
            try:
                move = self.board.parse_uci(word.lower())
                label_from_move(move, self.board.turn)  # raises LabelError for a null move
            except (chess.InvalidMoveError, chess.IllegalMoveError, LabelError):
                raise CommandError(
                    f"illegal move {quote(word)}: the position is rejected"
                ) from None
            self.board.push(move)
            self._words.append(word)
        return note
