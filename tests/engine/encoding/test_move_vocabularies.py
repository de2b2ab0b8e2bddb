"""Compare move vocabularies with independent formulas, on all legal moves of 10,000 positions."""

from functools import cache
from itertools import islice

import chess
import numpy as np
import pytest

from engine.encoding.move_vocabularies import (
    MoveIndexError,
    UnknownVocabularyError,
    find_indices,
    vocabulary,
)
from tests.engine import oracle
from tests.engine.encoding.test_planes_oracle import games_of

POSITIONS = 10_000
FILES = ("pgn/lichess_dump_2021-10_999.pgn", "pgn/lichess_export_2016-05.pgn")
MOVES = 290_558
NAMES = ("marro4096", "fromto4096", "factored", "az4672")
UNDER_PROMOTIONS = 156
"""Number of under-promotions among them; only az4672 gives these an index of their own."""


def expected_index(name: str, move: chess.Move, below: chess.Color) -> int:
    """Compute the index of a move; `below` is the side at the bottom of the board."""
    kind, start = oracle.type_and_bit(move.from_square, move.to_square, below)
    if name == "marro4096":
        return kind * 64 + start
    if name == "az4672":
        if move.promotion in (chess.KNIGHT, chess.BISHOP, chess.ROOK):
            files = chess.square_file(move.to_square) - chess.square_file(move.from_square)
            piece = [chess.KNIGHT, chess.BISHOP, chess.ROOK].index(move.promotion)
            return (64 + 3 * piece + files + 1) * 64 + start
        return kind * 64 + start
    return start * 64 + oracle.bit(move.to_square, below)


@cache
def moves_of_positions() -> tuple[list[tuple[chess.Move, bool]], np.ndarray, np.ndarray]:
    """Return the distinct (move, turn) of real positions, and row and number of each legal move."""
    numbers: dict[tuple[chess.Move, bool], int] = {}
    legal, row = [], 0
    for file in FILES:
        for game in islice(games_of(file, 400), 75):
            board = game.board()
            for played in game.mainline_moves():
                for move in board.legal_moves if row < POSITIONS else ():
                    legal.append((row, numbers.setdefault((move, board.turn), len(numbers))))
                board.push(played)
                row += 1
    row_m, number_m = np.array(legal).T
    return list(numbers), row_m, number_m


@pytest.mark.parametrize("absolute", [False, True], ids=["mover", "absolute"])
@pytest.mark.parametrize("name", [name for name in NAMES if name != "factored"])
def test_every_legal_move_has_an_index_and_round_trips(name: str, absolute: bool) -> None:
    numbered, row_m, number_m = moves_of_positions()
    rows = [
        (
            oracle.label(move, turn),
            move.promotion or 0,
            not turn,
            expected_index(name, move, chess.WHITE if absolute else turn),
        )
        for move, turn in numbered
    ]
    label_m, promotion_m, black_m, expected_m = np.array(rows)[number_m].T
    moves = vocabulary(name)
    turned_m = black_m.astype(bool) & absolute
    index_m = find_indices(moves, turned_m, label_m, promotion_m)
    assert np.array_equal(index_m, expected_m)

    movers_m = np.where(turned_m, moves.turned[index_m], index_m)
    assert np.array_equal(moves.labels[movers_m], label_m)
    is_under_m = np.isin(promotion_m, (2, 3, 4))
    expected_m = np.where(is_under_m & moves.under_promotions, promotion_m, 0)
    assert np.array_equal(moves.promotions[movers_m], expected_m)

    collisions = len(row_m) - len(np.unique(row_m * moves.size + index_m))
    assert collisions == (0 if name == "az4672" else UNDER_PROMOTIONS)
    assert is_under_m.sum() == UNDER_PROMOTIONS
    assert len(row_m) == MOVES


def test_vocabularies_have_the_published_sizes() -> None:
    assert [vocabulary(name).size for name in NAMES] == [4096, 4096, 4096, 4672]
    # 8 files x 3 steps, minus two that leave the board; 3 pieces; 2 last ranks (absolute views)
    assert np.count_nonzero(vocabulary("az4672").promotions) == (8 * 3 - 2) * 3 * 2
    # moves of a queen (1,456) and a knight (336) on an empty board
    assert np.count_nonzero(vocabulary("fromto4096").labels >= 0) == 1456 + 336


def test_mirroring_an_index_twice_is_the_identity() -> None:
    for name in NAMES:
        moves = vocabulary(name)
        turned = moves.turned
        assert np.array_equal(turned[turned], np.arange(moves.size))
        assert np.all(turned != np.arange(moves.size))
        assert np.array_equal(moves.labels < 0, moves.labels[turned] < 0)


def test_the_error_names_a_move_outside_the_vocabulary() -> None:
    moves = [("marro4096", 4096, 0), ("marro4096", -1, 0), ("az4672", 0, 6), ("fromto4096", 0, 0)]
    for name, label, promotion in moves:
        problem = rf"label {label} .* promotion {promotion} .*{name}"
        with pytest.raises(MoveIndexError, match=problem):
            find_indices(
                vocabulary(name), np.array([False]), np.array([label]), np.array([promotion])
            )
    with pytest.raises(UnknownVocabularyError, match="did you mean 'az4672'"):
        vocabulary("az4627")
