"""The engine against python-chess on every position of real games: planes, labels, push, FEN,
keys."""

import io
from collections.abc import Iterator
from typing import IO

import chess
import chess.pgn
import numpy as np
import pytest
import zstandard

from engine.board import position as words
from engine.board.movegen import en_passant_legal, legal_planes
from engine.encoding.planes import label_of, move_of
from tests.conftest import shared_data
from tests.engine import oracle

READ_BYTES = 48 << 20
"""Of the large dumps, the head: games are taken evenly from it."""
FEN_EVERY = 16
"""FEN and the label of every legal move are the slow part of python-chess: on each sixteenth
position."""

# (file, games): 3,000 games in all; `make test` compares a third of each file's, and `make
# test-slow` the others too
SOURCES = [
    ("pgn/lichess_rapid_eval_train.pgn.zst", 700),
    ("pgn/otb_345k.pgn.zst", 500),
    ("pgn/lichess_dump_2021-10_999.pgn", 400),
    ("pgn/lichess_dump_2013-01_100.pgn", 100),
    ("pgn/lichess_export_2016-05.pgn", 400),
    ("pgn/lichess_export_2024-05_blitz.pgn", 400),
    ("pgn/lichess_export_2022-2026_blitz.pgn", 400),
    ("robustness/lichess_from_position_395.pgn", 100),
]
EACH = [
    pytest.param(file, (games + 2 - part) // 3, part, marks=[pytest.mark.slow] if part else [])
    for file, games in SOURCES
    for part in range(3)
]


def _head(relative: str) -> str:
    path = shared_data(relative)
    with path.open("rb") as file:
        stream: IO[bytes] = (
            zstandard.ZstdDecompressor().stream_reader(file) if path.suffix == ".zst" else file
        )
        text = stream.read(READ_BYTES)
    if len(text) == READ_BYTES:
        text = text[: text.rindex(b"\n[Event ")]  # the last game is cut
    return text.decode("utf-8", errors="replace")


def games_of(relative: str, wanted: int, part: int = 0, parts: int = 1) -> Iterator[chess.pgn.Game]:
    """Yield standard games that python-chess replays whole, evenly from one file, disjoint from its
    other parts."""
    texts = _head(relative).split("\n[Event ")
    every = max(1, len(texts) // (wanted * parts * 5 // 4))
    for text in texts[part * every :: parts * every]:
        game = chess.pgn.read_game(
            io.StringIO(text if text.startswith("[Event") else "[Event " + text)
        )
        if (
            game is None
            or game.errors
            or type(game.board()) is not chess.Board
            or game.board().chess960
        ):
            continue
        if game.next() is not None:
            yield game


def _differences(got: np.ndarray, expected: list[int], board: chess.Board) -> str:
    pairs = enumerate(zip(got.tolist(), expected, strict=True))
    wrong = [
        f"plane {index}: {word:#018x}, not {right:#018x}"
        for index, (word, right) in pairs
        if word != right
    ]
    return "\n".join([board.fen(), str(board), *wrong])


def _check_slowly(board: chess.Board, position: words.Position) -> None:
    """Compare FEN both ways and the label of every legal move."""
    fen = board.fen(en_passant="fen")
    assert words.to_fen(position) == fen
    assert words.from_fen(fen).tolist() == position.tolist()
    for move in board.legal_moves:
        label = label_of(move, board.turn)
        assert label == oracle.label(move, board.turn), f"{board.fen()} {move}"
        assert move_of(label, move.promotion or 0, board.turn) == move


class Comparison:
    """What is kept from position to position: the planes' buffer, python-chess's planes, and the
    key of each position."""

    def __init__(self) -> None:
        self.planes = np.zeros(77, dtype=np.uint64)
        self.keys: dict[int, object] = {}
        self.positions: dict[object, int] = {}
        self.expected: dict[object, list[int]] = {}
        """By position: games begin alike, and python-chess's answer for equal positions is the
        same."""
        self.seen = 0

    def check(self, board: chess.Board, position: words.Position) -> None:
        """Compare one position, which the engine reached by its own `push`."""
        expected = words.from_board(board)
        assert position.tolist() == expected.tolist(), f"push: {board.fen()}"
        checkers = legal_planes(position, self.planes)
        identity = board._transposition_key()
        if (planes := self.expected.get(identity)) is None:
            planes = self.expected[identity] = oracle.planes(board)
        assert self.planes.tolist() == planes, _differences(self.planes, planes, board)
        assert checkers == len(board.checkers()), board.fen()
        en_passant = bool(en_passant_legal(position, self.planes))
        assert en_passant == board.has_legal_en_passant(), board.fen()
        key = int(words.key(position, en_passant))
        assert self.keys.setdefault(key, identity) == identity, (
            f"two positions, one key: {board.fen()}"
        )
        assert self.positions.setdefault(identity, key) == key, (
            f"one position, two keys: {board.fen()}"
        )
        if self.seen % FEN_EVERY == 0:
            _check_slowly(board, position)
        self.seen += 1


@pytest.mark.parametrize(("relative", "wanted", "part"), EACH)
def test_every_position_equals_python_chess(relative: str, wanted: int, part: int):
    comparison = Comparison()
    used = 0
    for game in games_of(relative, wanted, part, parts=3):
        board = game.board()
        position = words.from_fen(board.fen(en_passant="fen"))
        comparison.check(board, position)
        for move in game.mainline_moves():
            source, target = (
                oracle.bit(move.from_square, board.turn),
                oracle.bit(move.to_square, board.turn),
            )
            words.push(position, source, target, move.promotion or 0)
            board.push(move)
            comparison.check(board, position)
        used += 1
        if used == wanted:
            break
    assert used == wanted, f"only {used} standard games in {relative}"
    assert comparison.seen > 20 * wanted
    assert len(comparison.keys) < comparison.seen, "games start alike: keys must repeat"
