"""Which pieces may move to a square, against python-chess: drawn pins and checks, and games played
at random."""

import random
from collections import Counter

import chess
import numpy as np
import pytest

from engine.board.movers import legal_movers, may_capture_en_passant
from engine.board.position import from_board
from engine.encoding.planes import PLANES

U = np.uint64
DRAWN = (
    "4r2k/8/8/8/8/4N3/8/4K3 w - - 0 1",  # a knight that is pinned
    "4r2k/8/8/4R3/8/8/8/4K3 w - - 0 1",  # a rook that moves along its pin alone
    "7k/8/8/b7/8/2P5/8/R3K2R w KQ - 0 1",  # castling is none of these moves
    "4k3/8/8/8/7b/8/5n2/3RK3 w - - 0 1",
    "4k3/8/8/8/1b5b/3n4/8/R3K2Q w - - 0 1",  # in check by two: only the king moves
    "8/8/3k4/8/3K4/8/8/7R w - - 0 1",  # kings that keep apart
    "8/8/8/K2pP2r/8/8/8/7k w - d6 0 2",  # en passant would uncover the rook
    "8/8/8/3pP3/8/8/K7/7k w - d6 0 2",
    "1n2k3/P7/8/8/8/8/8/4K3 w - - 0 1",
)


def _moves(board: chess.Board) -> Counter[tuple[int, int, int]]:
    """Give python-chess's legal moves but for castling and en passant: from-squares by piece word
    and target, mover's view."""
    flip = 56 if board.turn == chess.WHITE else 0
    found: Counter[tuple[int, int, int]] = Counter()
    for move in board.legal_moves:
        if board.is_castling(move) or board.is_en_passant(move):
            continue
        word = 2 * ((board.piece_type_at(move.from_square) or 0) - 1)
        found[word, move.to_square ^ flip, move.from_square ^ flip] = 1
    return found


def _played(games: int) -> list[chess.Board]:
    """Give positions of games played at random, every third ply."""
    boards = []
    for seed in range(games):
        chance, board = random.Random(seed), chess.Board()
        while not board.is_game_over() and board.ply() < 150:
            if board.ply() % 3 == 0:
                boards.append(board.copy(stack=False))
            board.push(chance.choice(list(board.legal_moves)))
    return boards


def test_movers_are_those_of_python_chess():
    boards = [chess.Board(fen) for fen in DRAWN] + _played(4)
    assert any(board.is_check() for board in boards)
    for board in boards:
        position, wanted = from_board(board), _moves(board)
        found: Counter[tuple[int, int, int]] = Counter()
        for word in range(0, 12, 2):
            for target in range(64):
                movers = int(legal_movers(position, word, U(1 << target), U(2**64 - 1)))
                found.update((word, target, source) for source in chess.scan_forward(movers))
        assert found == wanted, board.fen()


def test_movers_are_looked_for_among_the_sources_alone():
    position = from_board(chess.Board("4k3/8/8/8/8/8/8/R3K2R w - - 0 1"))
    target, a_file = U(1 << 59), U(0x0101_0101_0101_0101)
    assert int(legal_movers(position, 6, target, U(2**64 - 1))) == 1 << 56
    assert int(legal_movers(position, 6, target, ~a_file)) == 0


@pytest.mark.parametrize(
    ("fen", "legal"),
    [
        ("8/8/8/3pP3/8/8/K7/7k w - d6 0 2", True),
        ("8/8/8/K2pP2r/8/8/8/7k w - d6 0 2", False),
        ("8/8/8/3p1P2/8/8/K7/7k w - d6 0 2", False),
        (chess.STARTING_FEN, False),
    ],
)
def test_a_capture_en_passant_is_looked_for_where_a_pawn_stands_beside(fen: str, legal: bool):
    planes = np.zeros(PLANES, dtype=np.uint64)
    assert bool(may_capture_en_passant(from_board(chess.Board(fen)), planes)) is legal
    assert chess.Board(fen).has_legal_en_passant() is legal
