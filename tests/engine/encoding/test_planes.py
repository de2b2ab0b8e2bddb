"""Planes and labels: validity, bit order, and the version that pins them."""

import chess
import numpy as np
import pytest

from engine.board.movegen import MOVE_PLANES
from engine.board.position import KING
from engine.encoding import planes as encoding
from engine.encoding.planes import (
    LabelError,
    PlanesError,
    check_planes,
    label_from_move,
    legal_mask,
    move_from_label,
    moves_hash,
    unpack,
)
from engine.evaluation import handwritten
from engine.evaluation.move_features import legal_move_features


def test_the_encoding_has_not_changed_without_a_new_version():
    assert (encoding.ENCODING_VERSION, moves_hash()) == (1, "e16a22556067d46b"), (
        "stored planes would change their meaning: raise ENCODING_VERSION if this is intended"
    )


def test_the_error_names_a_row_that_is_not_a_position():
    good = np.zeros((3, encoding.PLANES), np.uint64)
    good[:, KING], good[:, KING + 1], good[:, 20] = 1 << 60, 1 << 4, 1 << 60
    assert np.array_equal(check_planes(good), good)
    assert check_planes(good[::2]).flags.c_contiguous
    for plane, word in ((KING, 0), (KING, 3), (KING + 1, 0), (KING + 1, 2**64 - 1)):
        bad = good.copy()
        bad[1, plane] = word
        for reader in (check_planes, handwritten.evaluate, legal_move_features):
            with pytest.raises(PlanesError, match="row 1 is not a position"):
                reader(bad)
    crowded = good.copy()
    crowded[2, MOVE_PLANES : MOVE_PLANES + 4] = 2**64 - 1
    with pytest.raises(PlanesError, match=r"row 2 is not a position.*at most 256 legal moves"):
        handwritten.evaluate(crowded)
    for shape in ((1, 13), (77,)):
        with pytest.raises(PlanesError, match=r"uint64\[B, 77\]"):
            legal_move_features(np.zeros(shape, np.uint64))
    assert check_planes(np.zeros((0, encoding.PLANES), np.uint64)).shape == (0, encoding.PLANES)


def test_labels_and_moves_that_do_not_exist_are_errors():
    # out of range (twice), one step north from the top row, a knight's step off the board
    for label in (-1, 4096, 0, 56 * 64):
        with pytest.raises(LabelError, match=f"label {label} is not a move"):
            move_from_label(label, 0, chess.WHITE)
    with pytest.raises(LabelError, match="a1b4"):
        label_from_move(chess.Move.from_uci("a1b4"), chess.WHITE)


def test_unpacked_planes_and_legal_labels_follow_the_bit_order():
    planes = np.zeros((2, 77), dtype=np.uint64)
    for bit in (0, 7, 12, 63):
        planes[1, 13 + 5] |= np.uint64(1) << np.uint64(bit)
    planes[:, :13] = 2**64 - 1  # pieces and turn do not change the legal labels
    pictures = unpack(planes)
    assert (pictures.shape, pictures.dtype) == ((2, 77, 8, 8), np.uint8)
    assert np.argwhere(pictures[1, 18]).tolist() == [[0, 0], [0, 7], [1, 4], [7, 7]]
    legal = [[1, 5 * 64 + bit] for bit in (0, 7, 12, 63)]
    assert np.argwhere(legal_mask(planes)).tolist() == legal
