"""The plane table, the move table, labels, packing, and the version that pins them."""

import chess
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.board.movegen import MOVE_PLANES, TYPES
from engine.board.position import KING
from engine.encoding import planes as encoding
from engine.encoding.planes import (
    LabelError,
    PlanesError,
    check_planes,
    label_of,
    legal_mask,
    move_of,
    moves_hash,
    steps,
    target_table,
    unpack,
)
from engine.evaluation import handwritten
from engine.evaluation.move_features import legal_move_features


def test_the_encoding_is_the_one_that_shards_and_checkpoints_name():
    assert (encoding.ENCODING_VERSION, moves_hash()) == (1, "e16a22556067d46b"), (
        "The plane order, bit order or move table has changed. A changed bit is a new version: "
        "shards and checkpoints "
        "made before would be read wrongly and in silence. If the change is meant, raise "
        "ENCODING_VERSION, write it in "
        "CHANGELOG.md, and put the new version and hash here; if not, undo it."
    )


def test_rows_that_are_no_position_are_named_before_anything_reads_a_board_off_them():
    good = np.zeros((3, encoding.PLANES), np.uint64)
    good[:, KING], good[:, KING + 1], good[:, 20] = 1 << 60, 1 << 4, 1 << 60
    assert np.array_equal(check_planes(good), good)
    assert check_planes(good[::2]).flags.c_contiguous
    for place, word in ((KING, 0), (KING, 3), (KING + 1, 0), (KING + 1, 2**64 - 1)):
        bad = good.copy()
        bad[1, place] = word
        for reader in (check_planes, handwritten.evaluate, legal_move_features):
            with pytest.raises(PlanesError, match="row 1 is not a position"):
                reader(bad)
    crowded = good.copy()
    crowded[2, MOVE_PLANES : MOVE_PLANES + 4] = 2**64 - 1
    with pytest.raises(PlanesError, match=r"row 2 is not a position.*at most 256 moves"):
        handwritten.evaluate(crowded)
    for shape in ((1, 13), (77,), (2, 76)):
        with pytest.raises(PlanesError, match=r"planes are uint64\[B, 77\]"):
            legal_move_features(np.zeros(shape, np.uint64))
    assert check_planes(np.zeros((0, encoding.PLANES), np.uint64)).shape == (0, encoding.PLANES)


def test_move_types_are_distance_major_then_knights():
    assert steps()[:8] == ((0, 1), (1, 1), (1, 0), (1, -1), (0, -1), (-1, -1), (-1, 0), (-1, 1))
    assert steps()[8:16] == ((0, 2), (2, 2), (2, 0), (2, -2), (0, -2), (-2, -2), (-2, 0), (-2, 2))
    assert steps()[48] == (0, 7)
    assert steps()[56:] == ((1, 2), (2, 1), (2, -1), (1, -2), (-1, -2), (-2, -1), (-2, 1), (-1, 2))
    assert len(set(steps())) == TYPES


@pytest.mark.parametrize(
    ("uci", "turn", "label"),
    [
        ("e2e4", chess.WHITE, 8 * 64 + 52),  # N2 from row 6, column 4
        ("e7e5", chess.BLACK, 8 * 64 + 52),  # the same move seen by Black
        ("g1f3", chess.WHITE, 63 * 64 + 62),
        ("e1g1", chess.WHITE, 10 * 64 + 60),  # castling: E2 of the king
        ("e8c8", chess.BLACK, 14 * 64 + 60),
        ("a1h8", chess.WHITE, 49 * 64 + 56),  # NE7
        ("h8a1", chess.WHITE, 53 * 64 + 7),  # SW7
        ("b2a1", chess.BLACK, 7 * 64 + 9),  # a pawn that promotes: NW1 from row 1, column 1
    ],
)
def test_labels_worked_out_by_hand(uci: str, turn: chess.Color, label: int):
    assert label_of(chess.Move.from_uci(uci), turn) == label
    assert move_of(label, 0, turn) == chess.Move.from_uci(uci)


def test_every_label_that_stays_on_the_board_is_one_move_and_back():
    legal = np.flatnonzero(target_table() >= 0)
    # On an 8 x 8 board: queen steps and knight steps from every square.
    assert len(legal) == 1456 + 336
    for turn in chess.COLORS:
        moves = {move_of(label, 0, turn) for label in legal.tolist()}
        assert len(moves) == len(legal)
        assert sorted(label_of(move, turn) for move in moves) == legal.tolist()


@pytest.mark.parametrize(
    "label", [-1, 4096, 0, 56 * 64]
)  # out of range; N1 from the top row; a knight's jump off the top
def test_a_label_off_the_board_is_refused(label: int):
    with pytest.raises(LabelError, match=f"label {label} leaves the board"):
        move_of(label, 0, chess.WHITE)


def test_a_step_that_no_piece_takes_has_no_label():
    with pytest.raises(LabelError, match="a1b4"):
        label_of(chess.Move.from_uci("a1b4"), chess.WHITE)


def test_bit_k_is_row_and_column_of_the_picture():
    planes = np.zeros((1, 77), dtype=np.uint64)
    for k in (0, 7, 12, 56, 63):
        planes[0, 3] |= np.uint64(1) << np.uint64(k)
    pictures = unpack(planes)
    assert pictures.shape == (1, 77, 8, 8)
    assert pictures.dtype == np.uint8
    assert np.argwhere(pictures).tolist() == [
        [0, 3, 0, 0],
        [0, 3, 0, 7],
        [0, 3, 1, 4],
        [0, 3, 7, 0],
        [0, 3, 7, 7],
    ]


@given(st.integers(0, 4095), st.integers(0, 2))
def test_the_mask_is_the_bit_of_the_label(label: int, row: int):
    planes = np.zeros((3, 77), dtype=np.uint64)
    planes[row, 13 + label // 64] = np.uint64(1) << np.uint64(label % 64)
    planes[:, :13] = 2**64 - 1  # pieces and turn have no say
    assert np.argwhere(legal_mask(planes)).tolist() == [[row, label]]
