"""Write annotated games, damage their text, and compare how the pipeline and python-chess read it.

Each game that the pipeline finds is compared by its tags and movetext. Where the two differ on
purpose, `by_python_chess.find_problem` and `by_python_chess.read_one` follow the pipeline's rules,
which pipeline/pgn/README.md lists.
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
    rng = random.Random(seed)
    game = chess.pgn.Game()
    game.headers.update({"Event": f"game {seed}", "WhiteElo": "1500", "TimeControl": "180+2"})
    node: chess.pgn.GameNode = game
    for _ in range(rng.randrange(4, 30)):
        moves = list(node.board().legal_moves)
        if not moves:
            break
        following, other = node.add_main_variation(rng.choice(moves)), rng.choice(moves)
        if rng.random() < 0.2 and other != following.move:
            node.add_variation(other, comment="a line (with a bracket", nags=[4])
        if rng.random() < 0.6:
            clock = f"[%clk 0:0{rng.randrange(10)}:{rng.randrange(60):02}]"
            following.comment = f"[%eval {rng.randrange(-900, 900) / 100}] {clock}"
        elif rng.random() < 0.2:
            following.comment = rng.choice(
                ("good", "better was Nf3 1-0", "see [Event", "50 % ; more")
            )
        if rng.random() < 0.1:
            following.nags.add(rng.choice((1, 2, 6, 14)))
        node = following
    outcome = node.board().outcome()
    game.headers["Result"] = outcome.result() if outcome else rng.choice(RESULTS)
    exporter = chess.pgn.StringExporter(columns=80 if seed % 2 else None)
    return game.accept(exporter).encode() + b"\n\n"


def write_pairs(count: int) -> list[bytes]:
    """Return `count` random games, two in each text."""
    return [write_game(seed) + write_game(seed + 1) for seed in range(0, count, 2)]


def mutate(text: bytes, rng: random.Random) -> bytes:
    """Return the text with one to three changes."""
    for _ in range(rng.choice((1, 1, 2, 3))):
        text = rng.choice(MUTATIONS)(text, rng)
    return text


def _flip(text: bytes, rng: random.Random) -> bytes:
    at = rng.randrange(len(text) + 1)
    changed = bytes(byte ^ 1 << rng.randrange(8) for byte in text[at : at + 1])
    return text[:at] + rng.choice((changed, rng.randbytes(1))) + text[at + 1 :]


def _insert(text: bytes, rng: random.Random) -> bytes:
    at = rng.randrange(len(text) + 1)
    return text[:at] + rng.choice(SNIPPETS) + text[at:]


def _delete(text: bytes, rng: random.Random) -> bytes:
    at = rng.randrange(len(text) + 1)
    return text[:at] + text[at + rng.randrange(1, 12) :]


def _copy(text: bytes, rng: random.Random) -> bytes:
    first, at = rng.randrange(len(text) + 1), rng.randrange(len(text) + 1)
    return text[:at] + text[first : first + rng.randrange(1, 80)] + text[at:]


def _truncate(text: bytes, rng: random.Random) -> bytes:
    return text[: rng.randrange(len(text) + 1)]


def _change_lines(
    change: Callable[[list[bytes], int, random.Random], None],
) -> Callable[[bytes, random.Random], bytes]:
    """Return a mutation that changes the lines of a text at a random one."""

    def mutate_lines(text: bytes, rng: random.Random) -> bytes:
        lines = text.split(b"\n")
        change(lines, rng.randrange(len(lines)), rng)
        return b"\n".join(lines)

    return mutate_lines


def _duplicate(lines: list[bytes], at: int, rng: random.Random) -> None:
    lines.insert(rng.choice((at, rng.randrange(len(lines)))), lines[at])


def _remove(lines: list[bytes], at: int, rng: random.Random) -> None:
    del lines[at]


def _join(lines: list[bytes], at: int, rng: random.Random) -> None:
    lines[at : at + 2] = [b"".join(lines[at : at + 2])]


def _break(lines: list[bytes], at: int, rng: random.Random) -> None:
    place = rng.randrange(len(lines[at]) + 1)
    lines[at : at + 1] = [lines[at][:place], lines[at][place:]]


def _break_at_blank(lines: list[bytes], at: int, rng: random.Random) -> None:
    words = lines[at].split(b" ")
    place = rng.randrange(len(words))
    lines[at : at + 1] = [b" ".join(words[:place]), b" ".join(words[place:])]


def _mark(lines: list[bytes], at: int, rng: random.Random) -> None:
    events = [number for number, line in enumerate(lines) if line.startswith(b"[Event ")]
    at = rng.choice((at, rng.choice(events or [at])))
    lines[at] = BOM + lines[at]


def _end_line(lines: list[bytes], at: int, rng: random.Random) -> None:
    lines[at] += b"\r"


def _end_all_lines(text: bytes, rng: random.Random) -> bytes:
    return text.replace(b"\n", rng.choice((b"\r\n", b"\r")))


MUTATIONS = (
    _flip, _flip, _insert, _insert, _insert, _delete, _copy, _truncate, _end_all_lines,
    *map(_change_lines, (_duplicate, _remove, _join, _break, _break_at_blank, _mark, _end_line)),
)  # fmt: skip


Outcome = tuple[str, int | None, list[tuple[int, int]], list[int | None], list[int | None]]
"""Status of a game; if it is used, its result, moves (label, promotion), evals, later clocks."""


def _read_by_pipeline(game: by_kernels.Game) -> Outcome:
    if game.status != "used":
        return game.status, None, [], [], []
    return "used", game.result, game.moves, game.evals, game.clocks[2:]


def _read_by_python_chess(game: by_kernels.Game) -> Outcome:
    status, reading = by_python_chess.read_one(game.tags, game.movetext)
    if status != "used" or reading.start is None:
        return status, None, [], [], []
    moves, turn, plies = [], reading.start.turn, range(len(reading.moves))
    for move in reading.moves:
        moves.append((label(move, turn), move.promotion or 0))
        turn = not turn
    evals = [by_python_chess.expected_eval(reading, ply) for ply in plies]
    clocks = [by_python_chess.expected_clock(reading, ply) for ply in plies[2:]]
    return "used", reading.result, moves, evals, clocks


def find_differences(games: Iterable[by_kernels.Game]) -> list[tuple[Outcome, Outcome, bytes]]:
    """Return the games that python-chess reads differently: both outcomes, and the movetext.

    A game that both drop may have different reasons.
    """
    differences = []
    for game in games:
        ours, theirs = _read_by_pipeline(game), _read_by_python_chess(game)
        if ours != theirs and "used" in (ours[0], theirs[0]):
            differences.append((ours, theirs, game.movetext))
    return differences
