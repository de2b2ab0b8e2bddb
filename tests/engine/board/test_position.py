"""Positions: FEN in and out, honest and hostile; push; mirror; keys."""

import chess
import numpy as np
import pytest

from engine.board import position as words
from engine.board.movegen import en_passant_legal, legal_planes
from engine.board.position import FenError, from_fen, key, mirror, push, to_fen

START = "rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR w KQkq - 0 1"
ROOKS_AND_KINGS = "r3k2r/8/8/8/8/8/8/R3K2R w KQkq - 0 1"


def square(name: str, side: str) -> int:
    """Give the bit index of a square for the mover `side` ("w" or "b"): row 0 is the mover's eighth
    rank."""
    file, rank = "abcdefgh".index(name[0]), int(name[1])
    return (8 - rank if side == "w" else rank - 1) * 8 + file


def after(fen: str, *moves: str) -> str:
    """Play moves in UCI from a FEN and give the FEN reached."""
    position = from_fen(fen)
    side = fen.split()[1]
    for move in moves:
        promotion = " nbrq".index(move[4]) + 1 if len(move) == 5 else 0
        push(position, square(move[:2], side), square(move[2:4], side), promotion)
        side = "b" if side == "w" else "w"
    return to_fen(position)


def test_the_words_of_the_starting_position():
    position = from_fen(START)
    assert position.dtype == np.uint64
    own_pawns, opponent_pawns, own_knights, opponent_knights = (int(word) for word in position[:4])
    assert own_pawns == 0xFF << 48  # row 6
    assert opponent_pawns == 0xFF << 8  # row 1
    assert own_knights == 1 << 57 | 1 << 62
    assert opponent_knights == 1 << 1 | 1 << 6
    assert int(position[words.QUEEN]) == 1 << 59
    assert int(position[words.KING]) == 1 << 60
    assert int(position[words.KING + 1]) == 1 << 4
    assert position[words.TURN] == 0
    assert int(position[words.CASTLING]) == 1 << 56 | 1 << 63 | 1 << 0 | 1 << 7
    assert (position[words.EN_PASSANT], position[words.COUNTERS]) == (0, 0)


def test_the_words_with_black_to_move_are_seen_by_black():
    position = from_fen("4k3/8/8/8/3Pp3/8/8/4K2R b K d3 7 20")
    assert int(position[words.PAWN]) == 1 << square("e4", "b") == 1 << 28
    assert int(position[words.PAWN + 1]) == 1 << square("d4", "b") == 1 << 27
    assert int(position[words.TURN]) == 2**64 - 1
    # White's king's rook: the opponent's row 0, column 7
    assert int(position[words.CASTLING]) == 1 << 7
    assert int(position[words.EN_PASSANT]) == 1 << 19  # d3: row 2, column 3
    assert int(position[words.COUNTERS]) == 7 | 39 << 16  # 19 full moves and White's twentieth


@pytest.mark.parametrize(
    ("fen", "moves", "reached"),
    [
        (START, ["e2e4"], "rnbqkbnr/pppppppp/8/8/4P3/8/PPPP1PPP/RNBQKBNR b KQkq e3 0 1"),
        (START, ["e2e4", "c7c5"], "rnbqkbnr/pp1ppppp/8/2p5/4P3/8/PPPP1PPP/RNBQKBNR w KQkq c6 0 2"),
        (
            START,
            ["g1f3", "g8f6", "f3g1", "f6g8"],
            "rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR w KQkq - 4 3",
        ),
        (START, ["e2e3"], "rnbqkbnr/pppppppp/8/8/8/4P3/PPPP1PPP/RNBQKBNR b KQkq - 0 1"),
        (ROOKS_AND_KINGS, ["e1g1"], "r3k2r/8/8/8/8/8/8/R4RK1 b kq - 1 1"),
        (ROOKS_AND_KINGS, ["e1c1"], "r3k2r/8/8/8/8/8/8/2KR3R b kq - 1 1"),
        (ROOKS_AND_KINGS, ["e1e2", "e8c8"], "2kr3r/8/8/8/8/8/4K3/R6R w - - 2 2"),
        (ROOKS_AND_KINGS, ["e1e2", "e8g8"], "r4rk1/8/8/8/8/8/4K3/R6R w - - 2 2"),
        (ROOKS_AND_KINGS, ["a1a2"], "r3k2r/8/8/8/8/8/R7/4K2R b Kkq - 1 1"),
        (ROOKS_AND_KINGS, ["h1h8"], "r3k2R/8/8/8/8/8/8/R3K3 b Qq - 0 1"),  # both lose a right
        (ROOKS_AND_KINGS, ["h1h2", "a8a1"], "4k2r/8/8/8/8/8/7R/r3K3 w k - 0 2"),
        ("4k3/8/8/3pP3/8/8/8/4K3 w - d6 0 1", ["e5d6"], "4k3/8/3P4/8/8/8/8/4K3 b - - 0 1"),
        ("4k3/8/8/8/3Pp3/8/8/4K3 b - d3 0 1", ["e4d3"], "4k3/8/8/8/8/3p4/8/4K3 w - - 0 2"),
        ("4k3/8/8/3pP3/8/8/8/4K3 w - d6 0 1", ["e1e2"], "4k3/8/8/3pP3/8/8/4K3/8 b - - 1 1"),
        ("4k3/P7/8/8/8/8/8/4K3 w - - 9 1", ["a7a8q"], "Q3k3/8/8/8/8/8/8/4K3 b - - 0 1"),
        ("4k3/P7/8/8/8/8/8/4K3 w - - 9 1", ["a7a8n"], "N3k3/8/8/8/8/8/8/4K3 b - - 0 1"),
        # unnamed: a queen
        ("4k3/P7/8/8/8/8/8/4K3 w - - 9 1", ["a7a8"], "Q3k3/8/8/8/8/8/8/4K3 b - - 0 1"),
        ("4k2r/6P1/8/8/8/8/8/4K3 w k - 9 1", ["g7h8r"], "4k2R/8/8/8/8/8/8/4K3 b - - 0 1"),
        ("4k3/8/8/8/8/8/p7/4K3 b - - 9 5", ["a2a1b"], "4k3/8/8/8/8/8/8/b3K3 w - - 0 6"),
    ],
)
def test_push(fen: str, moves: list[str], reached: str):
    assert after(fen, *moves) == reached


def test_the_halfmove_clock_stops_at_its_width_and_leaves_the_ply_alone():
    position = from_fen("4k3/8/8/8/8/8/8/4K3 w - - 65535 10")
    push(position, 60, 52, 0)
    assert to_fen(position) == "4k3/8/8/8/8/8/4K3/8 b - - 65535 10"


def test_mirror_turns_the_board_round():
    position = from_fen("r3k3/8/8/8/3Pp3/8/8/4K2R b Kq d3 7 20")
    before = position.copy()
    mirror(position)
    # Mover's view: the same picture would now be White's.
    assert to_fen(position).split()[:4] == ["r3k3/8/8/8/3Pp3/8/8/4K2R", "w", "Kq", "d3"]
    assert int(position[words.PAWN]) == 1 << square("d4", "w")
    mirror(position)
    assert position.tolist() == before.tolist()


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
