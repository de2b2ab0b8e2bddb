"""PGN with accidents: annotated games, ways to damage their text, and how the two readers may differ.

`differ` names the documented reasons (`REASONS`) for which the two readers differ. Each reason is an edit of the text after
which python-chess reads what the pipeline read before, so a reason explains a difference exactly or not at all.
"""

import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import chess
import chess.pgn

from tests.engine.oracle import label
from tests.pipeline import by_kernels, by_python_chess
from tests.pipeline.datasets import RESULTS

BOM = b"\xef\xbb\xbf"
SNIPPETS = tuple(
    piece.encode("latin-1")
    for piece in (
        '[Event "a"]', '[Event "b"]\n', '[Result "1-0"]\n', '[FEN "8/8/8/8/8/8/8/K6k w - - 0 1"]\n', '[Variant "Atomic"]\n',
        "[", "]", '"', "1-0", "0-1", "1/2-1/2", "*", " 1-0\n", " *\n", "{", "}", "{ [%clk 0:01:00] [%eval -#3] }", "(", ")",
        "{[%eval-0.31]}", "{[%evaluation 5]}", "{[%clk\n0:03:00]}", ";", "; 1-0 {\n", "%", "\n% e4 {\n", "$1", "$", "\n",
        "\n\n", "\r", "\r\n", "\r\n\r\n", " ", "\t", "e4", "O-O", "O-O-O", "0-0", "0000", "--", "Z0", "@@@@", "N@f3", "e8=Q",
        "exd6e.p.", "g1f3", "Kg1", "N", "=", "x", "-", "1.", "1...", "!?", "\x00", "\x0b", "\x1c", "\xff",
        "(1. e4 e5)", "({)", "\n[x\n",
    )
)  # fmt: skip


def write_game(seed: int) -> bytes:
    """Return a random game as python-chess exports it: comments, clocks, evals, NAGs, variations; wrapped for some seeds."""
    chance = random.Random(seed)
    game = chess.pgn.Game()
    game.headers.update({"Event": f"game {seed}", "WhiteElo": "1500", "TimeControl": "180+2"})
    node: chess.pgn.GameNode = game
    for _ in range(chance.randrange(4, 30)):
        moves = list(node.board().legal_moves)
        if not moves:
            break
        following, other = node.add_main_variation(chance.choice(moves)), chance.choice(moves)
        if chance.random() < 0.2 and other != following.move:
            node.add_variation(other, comment="a line (with a bracket", nags=[4])
        if chance.random() < 0.6:
            clock = f"[%clk 0:0{chance.randrange(10)}:{chance.randrange(60):02}]"
            following.comment = f"[%eval {chance.randrange(-900, 900) / 100}] {clock}"
        elif chance.random() < 0.2:
            following.comment = chance.choice(("good", "better was Nf3 1-0", "see [Event", "50 % ; more"))
        if chance.random() < 0.1:
            following.nags.add(chance.choice((1, 2, 6, 14)))
        node = following
    outcome = node.board().outcome()
    game.headers["Result"] = outcome.result() if outcome else chance.choice(RESULTS)
    exporter = chess.pgn.StringExporter(columns=80 if seed % 2 else None)
    return game.accept(exporter).encode() + b"\n\n"


def mutate(text: bytes, chance: random.Random) -> bytes:
    """Return the text with one to three accidents."""
    for _ in range(chance.choice((1, 1, 2, 3))):
        text = chance.choice(ACCIDENTS)(text, chance)
    return text


def _flip(text: bytes, chance: random.Random) -> bytes:
    at = chance.randrange(len(text) + 1)
    changed = bytes(byte ^ 1 << chance.randrange(8) for byte in text[at : at + 1])
    return text[:at] + chance.choice((changed, chance.randbytes(1))) + text[at + 1 :]


def _insert(text: bytes, chance: random.Random) -> bytes:
    at = chance.randrange(len(text) + 1)
    return text[:at] + chance.choice(SNIPPETS) + text[at:]


def _delete(text: bytes, chance: random.Random) -> bytes:
    at = chance.randrange(len(text) + 1)
    return text[:at] + text[at + chance.randrange(1, 12) :]


def _copy(text: bytes, chance: random.Random) -> bytes:
    first, at = chance.randrange(len(text) + 1), chance.randrange(len(text) + 1)
    return text[:at] + text[first : first + chance.randrange(1, 80)] + text[at:]


def _truncate(text: bytes, chance: random.Random) -> bytes:
    return text[: chance.randrange(len(text) + 1)]


def _change_lines(change: Callable[[list[bytes], int, random.Random], None]) -> Callable[[bytes, random.Random], bytes]:
    """Return an accident that happens to a line."""

    def accident(text: bytes, chance: random.Random) -> bytes:
        lines = text.split(b"\n")
        change(lines, chance.randrange(len(lines)), chance)
        return b"\n".join(lines)

    return accident


def _duplicate(lines: list[bytes], at: int, chance: random.Random) -> None:
    lines.insert(chance.choice((at, chance.randrange(len(lines)))), lines[at])


def _remove(lines: list[bytes], at: int, chance: random.Random) -> None:
    del lines[at]


def _join(lines: list[bytes], at: int, chance: random.Random) -> None:
    lines[at : at + 2] = [b"".join(lines[at : at + 2])]


def _break(lines: list[bytes], at: int, chance: random.Random) -> None:
    place = chance.randrange(len(lines[at]) + 1)
    lines[at : at + 1] = [lines[at][:place], lines[at][place:]]


def _break_at_blank(lines: list[bytes], at: int, chance: random.Random) -> None:
    words = lines[at].split(b" ")
    place = chance.randrange(len(words))
    lines[at : at + 1] = [b" ".join(words[:place]), b" ".join(words[place:])]


def _mark(lines: list[bytes], at: int, chance: random.Random) -> None:
    events = [number for number, line in enumerate(lines) if line.startswith(b"[Event ")]
    at = chance.choice((at, chance.choice(events or [at])))
    lines[at] = BOM + lines[at]


def _end_line(lines: list[bytes], at: int, chance: random.Random) -> None:
    lines[at] += b"\r"


def _end_all_lines(text: bytes, chance: random.Random) -> bytes:
    return text.replace(b"\n", chance.choice((b"\r\n", b"\r")))


ACCIDENTS = (
    _flip, _flip, _insert, _insert, _insert, _delete, _copy, _truncate, _end_all_lines,
    *map(_change_lines, (_duplicate, _remove, _join, _break, _break_at_blank, _mark, _end_line)),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Fate:
    """What became of a game; results, moves and values are of used games only."""

    status: str
    event: bytes
    result: int | None = None
    moves: tuple[tuple[int, int], ...] = ()
    evals: tuple[int | None, ...] = ()
    clocks: tuple[int | None, ...] = ()
    """From each player's second move on."""


def _theirs(data: bytes) -> list[Fate]:
    """Return the fates of the games by python-chess."""
    fates = []
    for reading in by_python_chess.read(data):
        event = reading.headers.get("Event", "").encode("utf-8", "surrogateescape")
        if reading.verdict != "used" or reading.start is None:
            fates.append(Fate(reading.verdict, event))
            continue
        moves, turn, plies = [], reading.start.turn, range(len(reading.moves))
        for move in reading.moves:
            moves.append((label(move, turn), move.promotion or 0))
            turn = not turn
        evals = tuple(by_python_chess.expected_eval(reading, ply) for ply in plies)
        clocks = tuple(by_python_chess.expected_clock(reading, ply) for ply in plies[2:])
        fates.append(Fate("used", event, reading.result, tuple(moves), evals, clocks))
    return fates


def _ours(games: list[by_kernels.Game]) -> list[Fate]:
    """Return the fates of the games by the pipeline."""
    return [
        Fate("used", game.event, game.result, tuple(game.moves), tuple(game.evals), tuple(game.clocks[2:]))
        if game.status == "used"
        else Fate(game.status, game.event)
        for game in games
    ]


def _close_comments(text: bytes, games: list[by_kernels.Game], statuses: tuple[str, ...]) -> bytes:
    """Close the comment that is open at the end of games with these statuses, and make those games illegal."""
    for game in reversed(games):
        end = game.offset + game.length
        last = text[game.offset : end].rpartition(b"{")[2]
        if game.status in statuses and b"}" not in last and len(last) < game.length:
            before = text[:end].removesuffix(BOM)
            assert end == len(text) or (text[end:].startswith(b"[Event") and not before.splitlines()[-1].strip())
            text = text[:end] + b"}" + b")" * 50 + b" @a1\n\n" + text[end:]
    return text


def _separate_numbers(text: bytes, games: list[by_kernels.Game]) -> bytes:
    """Put a blank behind a move number that a pawn's move follows at once."""
    lines = re.split(rb"(?<=[\r\n])", text)
    number = re.compile(rb"(?<![a-hNBKRQ0-9])(\d+)(?=[-x]?[a-h][1-8])")
    return b"".join(line if line.startswith((b"[Event", b"[FEN")) else number.sub(rb"\1 ", line) for line in lines)


def _edit(pattern: bytes, replacement: bytes) -> Callable[[bytes, list[by_kernels.Game]], bytes]:
    """Return an edit by a regular expression."""
    return lambda text, games: re.sub(pattern, replacement, text)


IN_BAD_GAME = "comment that never ends in a bad game"
_EOL = rb"(?>\r\n|\r|\n)"
_BLANK = rb"(?:[ \t\x0b\x0c\x1c-\x1f]*" + _EOL + rb")"
_REMARK = rb"(?:[%;][^\r\n]*" + _EOL + rb")"

REASONS: dict[str, Callable[[bytes, list[by_kernels.Game]], bytes]] = {
    # A comment that is open at a blank line before `[Event` was never closed: the games after it are saved, and its own is
    # dropped. python-chess takes the rest of the file for the comment and uses the game.
    "comment that never ends": lambda text, games: _close_comments(text, games, ("unclosed comment",)),
    IN_BAD_GAME: lambda text, games: _close_comments(text, games, ("illegal move", "ambiguous move", "null move")),
    # Joined files have a mark each. python-chess strips one from the first line of a game, and not behind two blank lines.
    "byte-order mark": _edit(rb"(?m)(?<![^\r\n])(?:\xef\xbb\xbf)+", b""),
    # Files joined without a blank line: python-chess reads the second game's tags as moves of the first.
    "[Event after a result, no blank line": _edit(
        rb"((?:1-0|0-1|1/2-1/2|\*)[ \t]*" + _EOL + rb")(?=\[Event\s)", rb"\1\r\n"
    ),
    # A game of tags alone: python-chess gives its tags to the next game.
    "[Event after tags and a blank line": _edit(
        rb"((?<![^\r\n])\[[^\r\n]*" + _EOL + _BLANK + rb")(?=\[Event\s)", rb"\1\r\n"
    ),
    # python-chess ends a game at the second blank line behind its tags, and begins one without tags.
    "two blank lines after tags": _edit(
        rb"(\[[^\r\n]*" + _EOL + _BLANK + rb")(?:" + _REMARK + rb"*" + _BLANK + rb")++(?!\[Event\s)", rb"\1"
    ),
    # `1e4` is a move with its number; python-chess reads a pawn from the first rank.
    "move number without a blank": _separate_numbers,
    # python-chess reads one blank before a value, at most two decimals and ten digits.
    "value with more blanks or digits": lambda text, games: re.sub(
        rb"\[%(clk|eval)[\s\x1c-\x1f]+", rb"[%\1 ", re.sub(rb"(\[%eval[\s\x1c-\x1f]+[+-]?\d*\.\d\d)\d+", rb"\1", text)
    ),
}


def differ(text: bytes, path: Path) -> tuple[str, ...] | None:
    """Return the reasons that explain how the readers differ, none where they agree, None where no reasons do."""
    path.write_bytes(text)
    games = list(by_kernels.games(path)) if text else []
    found = _explain(text, games, [name for name in REASONS if name != IN_BAD_GAME])
    return _explain(text, games, list(REASONS)) if found is None else found


def _explain(text: bytes, games: list[by_kernels.Game], reasons: list[str]) -> tuple[str, ...] | None:
    """Return those of the reasons after whose edits the readers agree, None where they never do."""
    ours = [_plain(fate) for fate in _ours(games)]
    found: list[str] = []
    if [_plain(fate) for fate in _theirs(text)] == ours:
        return ()
    for name in reasons:
        edited = REASONS[name](text, games)
        if edited != text:
            text = edited
            found.append(name)
            if [_plain(fate) for fate in _theirs(text)] == ours:
                return tuple(found)
    return None


def _plain(fate: Fate) -> Fate:
    """Return the fate in the words of both readers: python-chess knows no unclosed comment."""
    return Fate("illegal move", fate.event) if fate.status == "unclosed comment" else fate
