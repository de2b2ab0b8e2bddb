"""Positions: the words, hostile FENs, keys; pushes are compared in encoding/."""

import chess
import numpy as np
import pytest

from engine.board import position as words
from engine.board.movegen import en_passant_legal, legal_planes
from engine.board.position import FenError, from_fen, key, push, to_fen

START = "rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR w KQkq - 0 1"
ROOKS_AND_KINGS = "r3k2r/8/8/8/8/8/8/R3K2R w KQkq - 0 1"


def square(name: str, side: str) -> int:
    """Return the bit index of a square for the mover `side` ("w" or "b")."""
    file, rank = "abcdefgh".index(name[0]), int(name[1])
    return (8 - rank if side == "w" else rank - 1) * 8 + file


def test_the_words_with_black_to_move_are_seen_by_black():
    position = from_fen("4k3/8/8/8/3Pp3/8/8/4K2R b K d3 7 20")
    assert int(position[words.PAWN]) == 1 << square("e4", "b") == 1 << 28
    assert int(position[words.PAWN + 1]) == 1 << square("d4", "b") == 1 << 27
    assert int(position[words.TURN]) == 2**64 - 1
    # White's king's rook: the opponent's row 0, column 7
    assert int(position[words.CASTLING]) == 1 << 7
    assert int(position[words.EN_PASSANT]) == 1 << 19  # d3: row 2, column 3
    assert int(position[words.COUNTERS]) == 7 | 39 << 16  # 19 full moves and White's twentieth


def test_the_halfmove_clock_stops_at_its_width_and_leaves_the_ply_alone():
    position = from_fen("4k3/8/8/8/8/8/8/4K3 w - - 65535 10")
    push(position, 60, 52, 0)
    assert to_fen(position) == "4k3/8/8/8/8/8/4K3/8 b - - 65535 10"


@pytest.mark.parametrize(
    "fen", ["", " ", "hello world", "r" * 10_000, "8/" * 5_000, "♔" * 10_000, START + " 0 1 e4"]
)
def test_what_is_no_fen_is_refused_in_one_short_line(fen: str):
    with pytest.raises(FenError) as caught:
        from_fen(fen)
    message = str(caught.value)
    assert message.startswith("not a FEN: ")
    assert fen[:20] in message
    assert len(message) < 300
    assert "\n" not in message


@pytest.mark.parametrize(
    ("fen", "reason"),
    [
        ("rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBN♔ w KQkq - 0 1", "invalid character"),
        ("rnbqkbnr/pppppppp/٨/8/8/8/PPPPPPPP/RNBQKBNR w KQkq - 0 1", "invalid character"),
        ("4k3/8/8/8/8/8/8/4K3\0 w - - 0 1", "invalid character"),
        ("4k3/8/8/8/8/8/4K3 w - - 0 1", "8 rows"),
        ("4k4/8/8/8/8/8/8/4K3 w - - 0 1", "8 columns"),
        ("44/8/8/8/8/8/8/4K3 w - - 0 1", "two subsequent digits"),
        ("4k3/8/8/8/8/8/8/4K3 x - - 0 1", "'w' or 'b'"),
        ("4k3/8/8/8/8/8/8/R3K2R w ZZ - 0 1", "castling"),
        ("4k3/8/8/8/8/8/8/4K3 w - z9 0 1", "en passant"),
        ("4k3/8/8/8/8/8/8/4K3 w - \udc80 0 1", "en passant"),
        ("4k3/8/8/8/8/8/8/4K3 w - - -5 1", "cannot be negative"),
        ("4k3/8/8/8/8/8/8/4K3 w - - 5 -1", "cannot be negative"),
        ("4k3/8/8/8/8/8/8/4K3 w - - ² 1", "half-move clock"),
        ("4k3/8/8/8/8/8/8/4K3 w - - " + "9" * 10_000 + " 1", "half-move clock"),
        ("8/8/8/8/8/8/8/8 w - - 0 1", "there are no pieces"),
        ("8/8/8/8/8/8/8/4K3 w - - 0 1", "Black has no king"),
        ("4k3/8/8/8/8/8/8/8 w - - 0 1", "White has no king"),
        ("8/8/8/8/8/8/8/K3K3 w - - 0 1", "Black has no king"),
        ("4k3/8/8/8/8/8/8/K3K3 w - - 0 1", "more than two kings"),
        ("4k3/8/8/8/8/8/8/P3K3 w - - 0 1", "pawns stand on a last rank"),
        ("p3k3/8/8/8/8/8/8/4K3 b - - 0 1", "pawns stand on a last rank"),
        ("4k3/8/8/8/8/8/8/4RK2 w - - 0 1", "the side that has moved is in check"),
        ("8/8/8/3kK3/8/8/8/8 b - - 0 1", "the side that has moved is in check"),
    ],
)
def test_a_fen_that_cannot_be_played_says_why(fen: str, reason: str):
    with pytest.raises(FenError, match=reason) as caught:
        from_fen(fen)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    ("fen", "kept"),
    [
        ("4k3/8/8/8/8/8/8/4K3 w KQkq - 0 1", "4k3/8/8/8/8/8/8/4K3 w - - 0 1"),
        ("r3k2r/8/8/8/8/8/8/R2K3R w KQkq - 0 1", "r3k2r/8/8/8/8/8/8/R2K3R w kq - 0 1"),
        ("4k3/8/8/8/8/8/8/1R2K1R1 w GB - 0 1", "4k3/8/8/8/8/8/8/1R2K1R1 w - - 0 1"),
        ("r3k2r/8/8/8/8/8/8/R3K2R w HAha - 0 1", "r3k2r/8/8/8/8/8/8/R3K2R w KQkq - 0 1"),
        ("4k3/8/8/8/8/8/8/4K3 w - d6 0 1", "4k3/8/8/8/8/8/8/4K3 w - - 0 1"),  # no pawn has moved
        ("4k3/8/8/3p4/8/8/8/4K3 w - d3 0 1", "4k3/8/8/3p4/8/8/8/4K3 w - - 0 1"),  # wrong rank
        ("4k3/8/3n4/3p4/8/8/8/4K3 w - d6 0 1", "4k3/8/3n4/3p4/8/8/8/4K3 w - - 0 1"),  # square taken
        # the pawn never stood on d7
        ("4k3/3p4/8/3p4/8/8/8/4K3 w - d6 0 1", "4k3/3p4/8/3p4/8/8/8/4K3 w - - 0 1"),
        # true, though none can take
        ("4k3/8/8/3p4/8/8/8/4K3 w - d6 0 1", "4k3/8/8/3p4/8/8/8/4K3 w - d6 0 1"),
        ("4k3/8/8/8/8/8/8/4K3 w - -", "4k3/8/8/8/8/8/8/4K3 w - - 0 1"),
        (
            "4k3/8/8/8/8/8/8/4K3 w - - 99999999999 99999999999",
            "4k3/8/8/8/8/8/8/4K3 w - - 65535 32768",
        ),
        (
            "QQQQQ1k1/8/8/8/8/8/PPPPPPPP/4K2Q b - - 0 1",
            "QQQQQ1k1/8/8/8/8/8/PPPPPPPP/4K2Q b - - 0 1",
        ),
    ],
)
def test_a_fen_that_lies_in_part_keeps_what_is_true(fen: str, kept: str):
    assert to_fen(from_fen(fen)) == kept


def key_of(fen: str) -> int:
    """Give a position's key as the repetition rule sees it."""
    position, planes = from_fen(fen), np.zeros(77, dtype=np.uint64)
    legal_planes(position, planes)
    return int(key(position, en_passant_legal(position, planes)))


DIFFERENT = [
    ROOKS_AND_KINGS,
    "r3k2r/8/8/8/8/8/8/R3K2R b KQkq - 0 1",  # the other side to move, the same picture
    "r3k2r/8/8/8/8/8/8/R3K2R w KQk - 0 1",
    "r3k2r/8/8/8/8/8/8/R3K2R w - - 0 1",
    "4k3/8/8/3pP3/8/8/8/4K3 w - - 0 1",
    "4k3/8/8/3pP3/8/8/8/4K3 w - d6 0 1",
]


def test_keys_tell_turn_castling_and_en_passant_apart():
    assert len({key_of(fen) for fen in DIFFERENT}) == len(DIFFERENT)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("4k3/8/8/3p4/8/8/8/4K3 w - d6 0 1", "4k3/8/8/3p4/8/8/8/4K3 w - - 0 1"),  # nothing can take
        # taking uncovers the rook
        ("4k3/8/8/K2pP2r/8/8/8/8 w - d6 0 1", "4k3/8/8/K2pP2r/8/8/8/8 w - - 0 1"),
        ("4k3/8/8/8/8/8/8/4K3 w - - 0 1", "4k3/8/8/8/8/8/8/4K3 w - - 49 80"),  # counters
    ],
)
def test_keys_leave_out_what_does_not_matter(one: str, other: str):
    assert key_of(one) == key_of(other)


@pytest.mark.parametrize(
    ("castling", "bits"),
    [("KQkq", 15), ("K", 1), ("Q", 2), ("k", 4), ("q", 8), ("Kq", 9), ("-", 0)],
)
def test_castling_bits_are_the_mover_s_first(castling: str, bits: int):
    white = from_fen(f"r3k2r/8/8/8/8/8/8/R3K2R w {castling} - 0 1")
    swapped = "".join(sorted(castling.swapcase()))  # White's rights come first
    black = from_fen(f"r3k2r/8/8/8/8/8/8/R3K2R b {swapped} - 0 1")
    assert words.castling_bits(white) == words.castling_bits(black) == bits


@pytest.mark.parametrize("file", "abcdefgh")
def test_the_en_passant_file(file: str):
    board = chess.Board()
    board.push_uci(f"{file}2{file}4")
    assert words.en_passant_file(words.from_board(board)) == "abcdefgh".index(file)
    assert words.en_passant_file(from_fen(START)) == 255
