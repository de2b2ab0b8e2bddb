"""Compare the engine with python-chess: planes, labels, movers, push, mirror, FEN and keys."""

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
from engine.board.movegen import count_moves, is_en_passant_legal, legal_planes, position_key
from engine.board.movers import can_capture_en_passant, legal_movers
from engine.board.position import from_board, from_fen, mirror, push, to_fen
from engine.encoding.planes import label_from_move, legal_mask, move_from_label
from engine.search.chess_rules import play
from tests.conftest import shared_data
from tests.engine import oracle

READ_BYTES = 6 << 20
"""Number of bytes of each file from which games are taken evenly."""
SLOW_INTERVAL = 16
"""Interval, in positions, of comparisons that are slow in python-chess: FEN, all legal moves."""

# (file, games): about 3,000 in total; the quick tests compare a twelfth of them
SOURCES = [
    ("pgn/lichess_rapid_eval_train.pgn.zst", 700),
    ("pgn/otb_345k.pgn.zst", 500),
    ("pgn/lichess_dump_2021-10_999.pgn", 400),
    ("pgn/lichess_dump_2013-01_100.pgn", 100),
    ("pgn/lichess_export_2016-05.pgn", 400),
    ("pgn/lichess_export_2024-05_blitz.pgn", 400),
    ("pgn/lichess_export_2022-2026_blitz.pgn", 400),
    ("robustness/lichess_from_position_395.pgn", 200),
]
PARTS = 12
CASES = [
    pytest.param(file, games // PARTS, part, marks=[pytest.mark.slow] if part else [])
    for file, games in SOURCES
    for part in range(PARTS)
]


def read_head(relative: str) -> str:
    """Return the complete games at the beginning of a PGN file."""
    path = shared_data(relative)
    with path.open("rb") as file:
        stream: IO[bytes] = (
            zstandard.ZstdDecompressor().stream_reader(file) if path.suffix == ".zst" else file
        )
        text = stream.read(READ_BYTES)
    if len(text) == READ_BYTES:
        text = text[: text.rindex(b"\n[Event ")]  # the last game is incomplete
    return text.decode("utf-8", errors="replace")


def games_of(relative: str, wanted: int, part: int = 0, parts: int = 1) -> Iterator[chess.pgn.Game]:
    """Yield valid games of standard chess, taken evenly from one of `parts` parts of a file."""
    texts = read_head(relative).split("\n[Event ")
    interval = max(1, len(texts) // (wanted * parts * 5 // 4))
    for text in texts[part * interval :: parts * interval]:
        text = text if text.startswith("[Event") else "[Event " + text
        game = chess.pgn.read_game(io.StringIO(text))
        if game is None or game.errors or game.next() is None:
            continue
        if type(game.board()) is chess.Board and not game.board().chess960:
            yield game


class Comparison:
    """Comparison of positions with python-chess; it remembers their planes and keys."""

    def __init__(self, slow_interval: int) -> None:
        self.slow_interval = slow_interval
        self.planes, self.scratch = np.zeros((2, 77), dtype=np.uint64)
        self.keys: dict[int, object] = {}
        self.positions: dict[object, int] = {}
        self.expected: dict[object, list[int]] = {}
        self.seen = 0

    def check(self, board: chess.Board, position: words.Position) -> None:
        """Compare a position that `push` has produced."""
        assert position.tolist() == from_board(board).tolist(), f"push: {board.fen()}"
        checkers = legal_planes(position, self.planes)
        identity = board._transposition_key()
        if (planes := self.expected.get(identity)) is None:
            planes = self.expected[identity] = oracle.planes(board)
        assert self.planes.tolist() == planes, f"planes: {board.fen()}"
        assert checkers == len(board.checkers()), board.fen()
        en_passant = bool(is_en_passant_legal(position, self.planes))
        assert en_passant == board.has_legal_en_passant(), board.fen()
        key = int(position_key(position, self.planes))
        assert self.keys.setdefault(key, identity) == identity, f"key of two: {board.fen()}"
        assert self.positions.setdefault(identity, key) == key, f"two keys: {board.fen()}"
        if self.seen % self.slow_interval == 0:
            self._check_slowly(board, position)
        self.seen += 1

    def _check_slowly(self, board: chess.Board, position: words.Position) -> None:
        """Compare FENs, labels, the position after each move, and the mirrored position."""
        fen = board.fen(en_passant="fen")
        assert to_fen(position) == fen
        assert from_fen(fen).tolist() == position.tolist()
        labels = set()
        for move in board.legal_moves:
            label = label_from_move(move, board.turn)
            labels.add(label)
            assert label == oracle.label(move, board.turn), f"{fen} {move}"
            assert move_from_label(label, move.promotion or 0, board.turn) == move
            child = position.copy()
            play(child, label, move.promotion or 0)
            board.push(move)
            assert child.tolist() == from_board(board).tolist(), f"{fen} {move}"
            board.pop()
        assert set(np.flatnonzero(legal_mask(self.planes[None])[0]).tolist()) == labels
        self._check_movers(board, position)
        assert count_moves(position, self.planes) == board.legal_moves.count()
        mirrored = position.copy()
        mirror(mirrored)
        passed = board.copy(stack=False)
        passed.turn = not board.turn  # mirroring gives the move to the other side
        assert mirrored[: words.COUNTERS].tolist() == from_board(passed)[: words.COUNTERS].tolist()
        mirror(mirrored)
        assert mirrored.tolist() == position.tolist()

    def _check_movers(self, board: chess.Board, position: words.Position) -> None:
        """Compare the pieces that can move to each square, without castling and en passant."""
        assert can_capture_en_passant(position, self.scratch) == board.has_legal_en_passant()
        expected, found = set(), set()
        for move in board.legal_moves:
            if not board.is_castling(move) and not board.is_en_passant(move):
                source = oracle.bit(move.from_square, board.turn)
                target = oracle.bit(move.to_square, board.turn)
                expected.add((board.piece_type_at(move.from_square), target, source))
        for kind in chess.PIECE_TYPES:
            for target in range(64):
                square, anywhere = np.uint64(1 << target), np.uint64(2**64 - 1)
                movers = int(legal_movers(position, 2 * (kind - 1), square, anywhere))
                found |= {(kind, target, source) for source in chess.scan_forward(movers)}
        assert found == expected, board.fen()


@pytest.mark.parametrize(("relative", "wanted", "part"), CASES)
def test_real_games_agree_with_python_chess(relative: str, wanted: int, part: int) -> None:
    comparison = Comparison(SLOW_INTERVAL)
    used = 0
    for game in games_of(relative, wanted, part, PARTS):
        board = game.board()
        position = from_fen(board.fen(en_passant="fen"))
        comparison.check(board, position)
        for move in game.mainline_moves():
            source = oracle.bit(move.from_square, board.turn)
            target = oracle.bit(move.to_square, board.turn)
            push(position, np.uint64(source), np.uint64(target), move.promotion or 0)
            board.push(move)
            comparison.check(board, position)
        used += 1
        if used == wanted:
            break
    assert used == wanted, f"only {used} standard games in {relative}"
    assert comparison.seen > 20 * wanted
    assert len(comparison.keys) < comparison.seen, "games share openings, so keys must repeat"


STARTS = [
    chess.STARTING_FEN,
    "r3k2r/p1ppqpb1/bn2pnp1/3PN3/1p2P3/2N2Q1p/PPPBBPPP/R3K2R w KQkq - 0 1",
    "n1n5/PPPk4/8/8/8/8/4Kppp/5N1N b - - 0 1",
    "8/2p5/3p4/KP5r/1R3p1k/8/4P1P1/8 w - - 0 1",
    "4k3/pppppppp/8/8/8/8/PPPPPPPP/4K3 w - - 0 1",
    "4r2k/8/8/4R3/8/8/8/4K3 w - - 0 1",  # a rook that can move only along its pin
    "4k3/8/8/8/1b5b/3n4/8/R3K2Q w - - 0 1",  # double check: only the king moves
    "8/8/8/K2pP2r/8/8/8/7k w - d6 0 2",  # en passant would open the rook's line
]


@settings(max_examples=40)
@given(st.sampled_from(STARTS), st.integers(0, 2**32), st.integers(0, 120))
def test_random_games_agree_with_python_chess(fen: str, seed: int, plies: int) -> None:
    comparison, board, random = Comparison(8), chess.Board(fen), Random(seed)
    for _ in range(plies):
        comparison.check(board, from_board(board))
        moves = list(board.legal_moves)
        if not moves:
            break
        board.push(random.choice(moves))
    comparison.seen = 0  # so that the last position is compared slowly
    comparison.check(board, from_board(board))
    planes, mirrored = comparison.planes.copy(), comparison.planes
    legal_planes(from_board(board.mirror()), mirrored)
    assert planes[12] == ~mirrored[12]
    assert np.delete(planes, 12).tolist() == np.delete(mirrored, 12).tolist()
