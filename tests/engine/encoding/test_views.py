"""Views: ChessMarro's own published rows bit for bit, and the mirror that makes them."""

import chess
import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis.extra.numpy import arrays

from engine.board.movegen import legal_planes
from engine.board.position import from_fen
from engine.encoding.planes import label_of, unpack
from engine.encoding.views import UnknownViewError, apply, apply_labels, view
from tests.conftest import shared_data


def _rows() -> list[dict]:
    return pq.read_table(
        shared_data("chessmarro/linchess_converted_stockfish99.parquet")
    ).to_pylist()


def _planes(fens: list[str]) -> np.ndarray:
    planes = np.zeros((len(fens), 77), dtype=np.uint64)
    for row, fen in zip(planes, fens, strict=True):
        legal_planes(from_fen(fen), row)
    return planes


def test_chessmarro_s_published_planes():
    rows = _rows()
    assert len(rows) == 100
    published = np.array([row["board"] for row in rows], dtype=np.uint8).reshape(100, 77, 8, 8)
    stored = _planes([row["fen_original"] for row in rows])
    assert 20 < np.count_nonzero(stored[:, 12]) < 80, "both sides must be to move"
    ours = unpack(apply(view("chessmarro77"), stored))
    assert np.argwhere(ours != published).tolist() == []


def test_chessmarro_s_published_labels():
    rows = _rows()
    black = np.array([row["fen_original"].split()[1] == "b" for row in rows])
    stored = [
        label_of(chess.Move.from_uci(row["best_uci"]), not b)
        for row, b in zip(rows, black.tolist(), strict=True)
    ]
    ours = apply_labels(view("chessmarro77"), black, np.array(stored, dtype=np.uint16))
    assert ours.tolist() == [row["best"] for row in rows]


def test_in_the_view_a_label_is_legal_where_its_plane_has_its_bit():
    fens = [row["fen_original"] for row in _rows()]
    stored = _planes(fens)
    shown = apply(view("chessmarro77"), stored)
    for row, fen in enumerate(fens):
        board = chess.Board(fen)
        labels = np.array([label_of(move, board.turn) for move in board.legal_moves])
        mapped = apply_labels(view("chessmarro77"), np.full(len(labels), not board.turn), labels)
        expected = np.unique(mapped).tolist()
        assert np.flatnonzero(unpack(shown[row : row + 1, 13:]).reshape(4096)).tolist() == expected


def _turned(planes: np.ndarray) -> np.ndarray:
    """Make plane 12 all ones or zeros by its lowest bit, as it is in stored rows."""
    planes[:, 12] = np.where(planes[:, 12] & np.uint64(1), np.uint64(2**64 - 1), np.uint64(0))
    return planes


@given(arrays(np.uint64, (4, 77)).map(_turned))
def test_the_view_is_its_own_inverse_but_for_the_turn(planes: np.ndarray):
    shown = view("chessmarro77")
    once = apply(shown, planes)
    assert (once[:, 12] == ~planes[:, 12]).all()
    again = once.copy()
    again[:, 12] = planes[:, 12]
    twice = apply(shown, again)
    twice[:, 12] = planes[:, 12]
    assert twice.tolist() == planes.tolist()


def test_the_label_mapping_is_its_own_inverse_and_leaves_white_alone():
    labels = np.arange(4096)
    black, white = np.ones(4096, dtype=bool), np.zeros(4096, dtype=bool)
    shown = view("chessmarro77")
    once = apply_labels(shown, black, labels)
    assert sorted(once.tolist()) == labels.tolist()
    assert (once != labels).all()  # a square never mirrors to itself
    assert (apply_labels(shown, black, once) == labels).all()
    assert (apply_labels(shown, white, labels) == labels).all()


def test_the_default_view_changes_nothing_and_copies():
    planes = _planes([chess.STARTING_FEN, "rnbqkbnr/pppppppp/8/8/4P3/8/PPPP1PPP/RNBQKBNR b KQkq -"])
    shown = apply(view("marro77"), planes)
    assert shown.tolist() == planes.tolist()
    shown[:] = 0
    assert planes.any()
    assert apply_labels(view("marro77"), np.array([True, False]), np.array([7, 4095])).tolist() == [
        7,
        4095,
    ]


def test_an_unknown_view_names_the_nearest():
    with pytest.raises(
        UnknownViewError, match=r"no view 'chesmarro77': did you mean 'chessmarro77'\?"
    ):
        view("chesmarro77")
