"""PGN with accidents: annotated games, ways to damage their text, and how a game is compared with
python-chess.

`differ` compares each game that the pipeline finds, by its tags and its movetext. Where the readers
differ on purpose, `by_python_chess.find_problem` and `by_python_chess.read_one` say so in code;
pipeline/pgn/README.md lists it in words.
"""

import random
from collections.abc import Callable, Iterable

import chess
import chess.pgn

from tests.engine.oracle import label
from tests.pipeline import by_kernels, by_python_chess
from tests.pipeline.datasets import RESULTS

BOM = b"\xef\xbb\xbf"
SNIPPETS = tuple(
    piece.encode("latin-1")
    for piece in (
        '[Event "a"]', '[Event "b"]\n', '[Result "1-0"]\n',
        '[FEN "8/8/8/8/8/8/8/K6k w - - 0 1"]\n', '[Variant "Atomic"]\n', "[", "]", '"', "1-0",
        "0-1", "1/2-1/2", "*", " 1-0\n", " *\n", "{", "}", "{ [%clk 0:01:00] [%eval -#3] }", "(",
        ")", "{[%eval-0.31]}",
        "{[%evaluation 5]}", "{[%clk\n0:03:00]}", ";", "; 1-0 {\n", "%", "\n% e4 {\n", "$1", "$",
        "\n", "\n\n", "\r", "\r\n", "\r\n\r\n", " ", "\t", "e4", "O-O", "O-O-O", "0-0", "0000",
        "--", "Z0", "@@@@", "N@f3", "e8=Q", "exd6e.p.", "g1f3", "Kg1", "N", "=", "x", "-", "1.",
        "1...", "!?", "\x00", "\x0b", "\x1c", "\xff", "(1. e4 e5)", "({)", "\n[x\n",
    )
)  # fmt: skip


def write_game(seed: int) -> bytes:
    """Return a random game as python-chess exports it, with comments, NAGs and variations."""
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
            following.comment = chance.choice(
                ("good", "better was Nf3 1-0", "see [Event", "50 % ; more")
            )
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


def _change_lines(
    change: Callable[[list[bytes], int, random.Random], None],
) -> Callable[[bytes, random.Random], bytes]:
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


Fate = tuple[str, int | None, list[tuple[int, int]], list[int | None], list[int | None]]
"""Status; for used games the result, moves (label, promotion), evals, and later clocks."""


def _ours(game: by_kernels.Game) -> Fate:
    """Return the fate of a game by the pipeline."""
    if game.status != "used":
        return game.status, None, [], [], []
    return "used", game.result, game.moves, game.evals, game.clocks[2:]


def _theirs(game: by_kernels.Game) -> Fate:
    """Return the fate of the same tags and movetext by python-chess."""
    verdict, reading = by_python_chess.read_one(game.tags, game.movetext)
    if verdict != "used" or reading.start is None:
        return verdict, None, [], [], []
    moves, turn, plies = [], reading.start.turn, range(len(reading.moves))
    for move in reading.moves:
        moves.append((label(move, turn), move.promotion or 0))
        turn = not turn
    evals = [by_python_chess.expected_eval(reading, ply) for ply in plies]
    clocks = [by_python_chess.expected_clock(reading, ply) for ply in plies[2:]]
    return "used", reading.result, moves, evals, clocks


def differ(games: Iterable[by_kernels.Game]) -> list[tuple[Fate, Fate, bytes]]:
    """Return the games that python-chess reads otherwise: the pipeline's fate, python-chess's, the
    movetext.

    Of several reasons to drop a game either may be named.
    """
    pairs = ((_ours(game), _theirs(game), game.movetext) for game in games)
    return [pair for pair in pairs if pair[0] != pair[1] and "used" in (pair[0][0], pair[1][0])]
