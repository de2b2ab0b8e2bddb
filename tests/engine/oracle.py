"""Compute the 77 planes and the labels with python-chess, without the engine's code."""

from functools import cache

import chess

STEPS = ((0, 1), (1, 1), (1, 0), (1, -1), (0, -1), (-1, -1), (-1, 0), (-1, 1))
"""(file, rank) of N NE E SE S SW W NW; the mover's pawns move north."""
KNIGHT_STEPS = ((1, 2), (2, 1), (2, -1), (1, -2), (-1, -2), (-2, -1), (-2, 1), (-1, 2))


def row_col(square: chess.Square, turn: chess.Color) -> tuple[int, int]:
    """Return row and column in the mover's view: row 0 is the eighth rank, column 0 the a-file."""
    rank = chess.square_rank(square)
    return (7 - rank if turn == chess.WHITE else rank), chess.square_file(square)


@cache
def bit(square: chess.Square, turn: chess.Color) -> int:
    """Return the bit index of a square in the mover's view."""
    row, col = row_col(square, turn)
    return 8 * row + col


@cache
def type_and_bit(source: chess.Square, target: chess.Square, turn: chess.Color) -> tuple[int, int]:
    """Return a move's type (0..63) and the bit of its from-square."""
    (from_row, from_col), (to_row, to_col) = row_col(source, turn), row_col(target, turn)
    file, rank = to_col - from_col, from_row - to_row
    if (file, rank) in KNIGHT_STEPS:
        kind = 56 + KNIGHT_STEPS.index((file, rank))
    else:
        distance = max(abs(file), abs(rank))
        kind = (distance - 1) * 8 + STEPS.index((file // distance, rank // distance))
    return kind, from_row * 8 + from_col


def label(move: chess.Move, turn: chess.Color) -> int:
    kind, start = type_and_bit(move.from_square, move.to_square, turn)
    return kind * 64 + start


def planes(board: chess.Board) -> list[int]:
    """Return the 77 planes of a board in the mover's view, as Python integers."""
    words = [0] * 77
    for kind in chess.PIECE_TYPES:
        for color in chess.COLORS:
            for square in board.pieces(kind, color):
                words[2 * (kind - 1) + (color != board.turn)] |= 1 << bit(square, board.turn)
    words[12] = 0 if board.turn == chess.WHITE else 2**64 - 1
    for move in board.legal_moves:
        kind, start = type_and_bit(move.from_square, move.to_square, board.turn)
        words[13 + kind] |= 1 << start
    return words


def ascii_board(board: int) -> str:
    """Draw a bitboard as eight lines of `x` and `.`, row 0 (the mover's eighth rank) on top."""
    return "\n".join(
        " ".join("x" if board >> (8 * row + col) & 1 else "." for col in range(8))
        for row in range(8)
    )
