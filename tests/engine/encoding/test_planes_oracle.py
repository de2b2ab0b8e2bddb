"""The engine against python-chess: planes, labels, push, mirror, FEN and keys.

Real games go where people go. Random games go elsewhere: many promotions, kings in the open, odd
material.
"""

import io
from collections.abc import Iterator
from random import Random
from typing import IO

import chess
import chess.pgn
import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.board import position as words
from engine.board.movegen import count_moves, en_passant_legal, legal_planes
from engine.board.position import from_board, from_fen, mirror, push, to_fen
from engine.encoding.planes import label_of, legal_mask, move_of, target_table
from tests.conftest import shared_data
from tests.engine import oracle

READ_BYTES = 48 << 20
"""Of the large dumps, the head: games are taken evenly from it."""
SLOWLY_EVERY = 16
"""FEN and all legal moves, the slow part of python-chess, are compared this rarely."""

# (file, games): about 3,000 games in all. `make test` compares a sixth of each file's, and
# `make test-slow` the others too.
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
PARTS = 6
EACH = [
    pytest.param(file, games // PARTS, part, marks=[pytest.mark.slow] if part else [])
    for file, games in SOURCES
    for part in range(PARTS)
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
    """Yield standard games that python-chess replays whole, evenly from one part of a file."""
    texts = _head(relative).split("\n[Event ")
    every = max(1, len(texts) // (wanted * parts * 5 // 4))
    for text in texts[part * every :: parts * every]:
        game = chess.pgn.read_game(
            io.StringIO(text if text.startswith("[Event") else "[Event " + text)
        )
        if game is None or game.errors or game.next() is None:
            continue
        if type(game.board()) is chess.Board and not game.board().chess960:
            yield game


def _differences(got: np.ndarray, expected: list[int], board: chess.Board) -> str:
    pairs = enumerate(zip(got.tolist(), expected, strict=True))
    wrong = [
        f"plane {index}: {word:#018x}, not {right:#018x}"
        for index, (word, right) in pairs
        if word != right
    ]
    return "\n".join([board.fen(), str(board), *wrong])


class Comparison:
    """Compares positions; keeps python-chess's planes and the keys of those before."""

    def __init__(self, slowly_every: int) -> None:
        self.slowly_every = slowly_every
        self.planes = np.zeros(77, dtype=np.uint64)
        self.keys: dict[int, object] = {}
        self.positions: dict[object, int] = {}
        self.expected: dict[object, list[int]] = {}
        self.seen = 0

    def check(self, board: chess.Board, position: words.Position) -> None:
        """Compare one position, which the engine reached by its own `push`."""
        assert position.tolist() == from_board(board).tolist(), f"push: {board.fen()}"
        checkers = legal_planes(position, self.planes)
        identity = board._transposition_key()
        if (planes := self.expected.get(identity)) is None:
            planes = self.expected[identity] = oracle.planes(board)
        assert self.planes.tolist() == planes, _differences(self.planes, planes, board)
        assert checkers == len(board.checkers()), board.fen()
        en_passant = bool(en_passant_legal(position, self.planes))
        assert en_passant == board.has_legal_en_passant(), board.fen()
        key = int(words.key(position, en_passant))
        assert self.keys.setdefault(key, identity) == identity, f"two positions: {board.fen()}"
        assert self.positions.setdefault(identity, key) == key, f"two keys: {board.fen()}"
        if self.seen % self.slowly_every == 0:
            self._check_slowly(board, position)
        self.seen += 1

    def _check_slowly(self, board: chess.Board, position: words.Position) -> None:
        """Compare FEN both ways, the labels, the position after each move, and the mirror."""
        fen = board.fen(en_passant="fen")
        assert to_fen(position) == fen
        assert from_fen(fen).tolist() == position.tolist()
        labels = set()
        for move in board.legal_moves:
            label = label_of(move, board.turn)
            labels.add(label)
            assert label == oracle.label(move, board.turn), f"{fen} {move}"
            assert move_of(label, move.promotion or 0, board.turn) == move
            child = position.copy()
            push(child, label % 64, int(target_table()[label]), move.promotion or 0)
            board.push(move)
            assert child.tolist() == from_board(board).tolist(), f"{fen} {move}"
            board.pop()
        assert set(np.flatnonzero(legal_mask(self.planes[None])[0]).tolist()) == labels
        assert count_moves(position, self.planes) == board.legal_moves.count()
        turned = position.copy()
        mirror(turned)
        null = board.copy(stack=False)
        null.turn = not board.turn  # mirroring gives the other side the move on the same board
        assert turned[: words.COUNTERS].tolist() == from_board(null)[: words.COUNTERS].tolist()
        mirror(turned)
        assert turned.tolist() == position.tolist()


@pytest.mark.parametrize(("relative", "wanted", "part"), EACH)
def test_every_position_of_real_games(relative: str, wanted: int, part: int) -> None:
    comparison = Comparison(SLOWLY_EVERY)
    used = 0
    for game in games_of(relative, wanted, part, PARTS):
        board = game.board()
        position = from_fen(board.fen(en_passant="fen"))
        comparison.check(board, position)
        for move in game.mainline_moves():
            source, target = (
                oracle.bit(square, board.turn) for square in (move.from_square, move.to_square)
            )
            push(position, source, target, move.promotion or 0)
            board.push(move)
            comparison.check(board, position)
        used += 1
        if used == wanted:
            break
    assert used == wanted, f"only {used} standard games in {relative}"
    assert comparison.seen > 20 * wanted
    assert len(comparison.keys) < comparison.seen, "games start alike: keys must repeat"


STARTS = [
    chess.STARTING_FEN,
    "r3k2r/p1ppqpb1/bn2pnp1/3PN3/1p2P3/2N2Q1p/PPPBBPPP/R3K2R w KQkq - 0 1",
    "n1n5/PPPk4/8/8/8/8/4Kppp/5N1N b - - 0 1",
    "8/2p5/3p4/KP5r/1R3p1k/8/4P1P1/8 w - - 0 1",
    "4k3/pppppppp/8/8/8/8/PPPPPPPP/4K3 w - - 0 1",
]


@settings(max_examples=100)
@given(st.sampled_from(STARTS), st.integers(0, 2**32), st.integers(0, 120))
def test_every_position_of_random_games(fen: str, seed: int, plies: int) -> None:
    comparison, board, random = Comparison(8), chess.Board(fen), Random(seed)
    for _ in range(plies):
        comparison.check(board, from_board(board))
        moves = list(board.legal_moves)
        if not moves:
            break
        board.push(random.choice(moves))
    comparison.seen = 0  # the last one slowly
    comparison.check(board, from_board(board))
    ours, theirs = comparison.planes.copy(), comparison.planes
    legal_planes(from_board(board.mirror()), theirs)
    assert ours[12] == ~theirs[12], "colors swapped look the same to the mover"
    assert np.delete(ours, 12).tolist() == np.delete(theirs, 12).tolist()
