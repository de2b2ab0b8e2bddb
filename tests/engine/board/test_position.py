"""Positions from hostile FENs, and their keys; tests/engine/encoding compares `push`."""

import numpy as np
import pytest

from engine.board.movegen import legal_planes, position_key
from engine.board.position import FenError, from_fen, push, to_fen

START = "rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR w KQkq - 0 1"


def test_the_halfmove_clock_saturates_at_16_bits():
    position = from_fen("4k3/8/8/8/8/8/8/4K3 w - - 65535 10")
    push(position, np.uint64(60), np.uint64(52), 0)
    assert to_fen(position) == "4k3/8/8/8/8/8/4K3/8 b - - 65535 10"


@pytest.mark.parametrize(
    ("fen", "reason"),
    [
        ("", "not a FEN"),
        ("hello world", "not a FEN"),
        ("8/" * 5_000, "not a FEN"),
        ("♔" * 10_000, "not a FEN"),
        (START + " 0 1 e4", "not a FEN"),
        ("rnbqkbnr/pppppppp/٨/8/8/8/PPPPPPPP/RNBQKBNR w KQkq - 0 1", "invalid character"),
        ("4k3/8/8/8/8/8/8/4K3\0 w - - 0 1", "invalid character"),
        ("4k3/8/8/8/8/8/4K3 w - - 0 1", "8 rows"),
        ("4k4/8/8/8/8/8/8/4K3 w - - 0 1", "8 columns"),
        ("4k3/8/8/8/8/8/8/4K3 x - - 0 1", "'w' or 'b'"),
        ("4k3/8/8/8/8/8/8/R3K2R w ZZ - 0 1", "castling"),
        ("4k3/8/8/8/8/8/8/4K3 w - \udc80 0 1", "en passant"),
        ("4k3/8/8/8/8/8/8/4K3 w - - -5 1", "cannot be negative"),
        ("4k3/8/8/8/8/8/8/4K3 w - - ² 1", "half-move clock"),
        ("4k3/8/8/8/8/8/8/4K3 w - - " + "9" * 10_000 + " 1", "half-move clock"),
        ("8/8/8/8/8/8/8/8 w - - 0 1", "there are no pieces"),
        ("8/8/8/8/8/8/8/4K3 w - - 0 1", "Black has no king"),
        ("4k3/8/8/8/8/8/8/8 w - - 0 1", "White has no king"),
        ("4k3/8/8/8/8/8/8/K3K3 w - - 0 1", "more than two kings"),
        ("p3k3/8/8/8/8/8/8/4K3 b - - 0 1", "a pawn is on the first or last rank"),
        ("4k3/8/8/8/8/8/8/4RK2 w - - 0 1", "the side that is not to move is in check"),
    ],
)
def test_the_error_of_an_unplayable_fen_is_one_short_line(fen: str, reason: str):
    with pytest.raises(FenError, match=reason) as caught:
        from_fen(fen)
    message = str(caught.value)
    assert fen[:20] in message or "\0" in fen or "\udc80" in fen
    assert len(message) < 300
    assert "\n" not in message


@pytest.mark.parametrize(
    ("fen", "kept"),
    [
        ("4k3/8/8/8/8/8/8/4K3 w KQkq - 0 1", "4k3/8/8/8/8/8/8/4K3 w - - 0 1"),
        ("r3k2r/8/8/8/8/8/8/R2K3R w KQkq - 0 1", "r3k2r/8/8/8/8/8/8/R2K3R w kq - 0 1"),
        ("r3k2r/8/8/8/8/8/8/R3K2R w HAha - 0 1", "r3k2r/8/8/8/8/8/8/R3K2R w KQkq - 0 1"),
        # no pawn can have just passed d6: there is none, d6 is occupied, or d7 is
        ("4k3/8/8/8/8/8/8/4K3 w - d6 0 1", "4k3/8/8/8/8/8/8/4K3 w - - 0 1"),
        ("4k3/8/3n4/3p4/8/8/8/4K3 w - d6 0 1", "4k3/8/3n4/3p4/8/8/8/4K3 w - - 0 1"),
        ("4k3/3p4/8/3p4/8/8/8/4K3 w - d6 0 1", "4k3/3p4/8/3p4/8/8/8/4K3 w - - 0 1"),
        # valid, although no pawn can capture
        ("4k3/8/8/3p4/8/8/8/4K3 w - d6 0 1", "4k3/8/8/3p4/8/8/8/4K3 w - d6 0 1"),
        ("4k3/8/8/8/8/8/8/4K3 w - -", "4k3/8/8/8/8/8/8/4K3 w - - 0 1"),
        (
            "4k3/8/8/8/8/8/8/4K3 w - - 99999999999 99999999999",
            "4k3/8/8/8/8/8/8/4K3 w - - 65535 32768",
        ),
    ],
)
def test_impossible_parts_of_a_fen_are_dropped(fen: str, kept: str):
    assert to_fen(from_fen(fen)) == kept


def key_of(fen: str) -> int:
    """Return a position's key for the repetition rule."""
    position, planes = from_fen(fen), np.zeros(77, dtype=np.uint64)
    legal_planes(position, planes)
    return int(position_key(position, planes))


def test_keys_differ_exactly_if_positions_differ_for_repetition():
    different = [
        "r3k2r/8/8/8/8/8/8/R3K2R w KQkq - 0 1",
        "r3k2r/8/8/8/8/8/8/R3K2R b KQkq - 0 1",  # Black to move
        "r3k2r/8/8/8/8/8/8/R3K2R w KQk - 0 1",
        "r3k2r/8/8/8/8/8/8/R3K2R w - - 0 1",
        "4k3/8/8/3pP3/8/8/8/4K3 w - - 0 1",
        "4k3/8/8/3pP3/8/8/8/4K3 w - d6 0 1",
    ]
    assert len({key_of(fen) for fen in different}) == len(different)
    for one, other in (
        # no pawn can capture; the capture would open the rook's line; counters are not in the key
        ("4k3/8/8/3p4/8/8/8/4K3 w - d6 0 1", "4k3/8/8/3p4/8/8/8/4K3 w - - 0 1"),
        ("4k3/8/8/K2pP2r/8/8/8/8 w - d6 0 1", "4k3/8/8/K2pP2r/8/8/8/8 w - - 0 1"),
        ("4k3/8/8/8/8/8/8/4K3 w - - 0 1", "4k3/8/8/8/8/8/8/4K3 w - - 49 80"),
    ):
        assert key_of(one) == key_of(other)
