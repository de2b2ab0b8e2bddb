"""A position as sixteen words in the mover's view: convert from and to FEN, push, mirror, hash.

word    meaning
0..11   the mover's and the opponent's pawns, knights, bishops, ...: P p N n B b R r Q q K k
12      turn: zero with White to move, all ones with Black to move
13      castling: home squares of rooks that may castle, the mover's in row 7, the others in row 0
14      en-passant square after a double push, in row 2; zero if there is none
15      halfmove clock | ply << 16; plies count from 0, so the full move is ply // 2 + 1

The first thirteen words are planes 0..12 of the encoding. A push mirrors the board and swaps the
colors, so the words always have the view of the side to move.
"""

from typing import Any

import chess
import numpy as np
from numba import njit
from numpy.typing import NDArray

from engine.board.bitboard import (
    ALL_SQUARES,
    EMPTY,
    RANK_1,
    RANK_2,
    RANK_8,
    U,
    bit,
    flip,
    lowest_square,
)
from engine.board.rng import FIRST_FACTOR, GOLDEN_GAMMA, SECOND_FACTOR
from engine.errors import UserError
from engine.kernels import NO_REFCOUNT

WORDS = 16
"""Number of words of a position."""
TURN = 12
CASTLING = 13
EN_PASSANT = 14
COUNTERS = 15

PAWN, KNIGHT, BISHOP, ROOK, QUEEN, KING = 0, 2, 4, 6, 8, 10
"""Index of the word with the mover's pieces of a kind; the opponent's are in the next word."""
MOVER, OPPONENT = np.int64(0), np.int64(1)
"""Sides, added to the index of a piece. They are int64, because Numba would compile a kernel again
for each literal number passed to it."""

HALFMOVE_MASK = U(0xFFFF)

MAX_MOVES = 256
"""Size of arrays of legal moves, in which each promotion is four moves. A position of a game has
at most 218."""
_MAX_PIECE_MOVES = (12, 8, 13, 14, 27, 10)
"""Maximum number of moves of a pawn, knight, bishop, rook, queen and king."""

_UNPLAYABLE_REASONS = {
    chess.STATUS_EMPTY: "there are no pieces",
    chess.STATUS_NO_WHITE_KING: "White has no king",
    chess.STATUS_NO_BLACK_KING: "Black has no king",
    chess.STATUS_TOO_MANY_KINGS: "there are more than two kings",
    chess.STATUS_PAWNS_ON_BACKRANK: "a pawn is on the first or last rank",
    chess.STATUS_OPPOSITE_CHECK: "the side that is not to move is in check",
}

Position = NDArray[np.uint64]


class FenError(UserError):
    """A malformed FEN, or a position that is not playable in standard chess."""


def from_board(board: chess.Board) -> Position:
    """Convert a python-chess board to a position, uint64[16].

    Does not check that the position is playable, but raises FenError if there are more than
    MAX_MOVES legal moves.
    """
    position = np.zeros(WORDS, dtype=np.uint64)
    white = board.turn == chess.WHITE
    own, opponent = board.occupied_co[board.turn], board.occupied_co[not board.turn]
    # python-chess numbers squares from a1, so its boards are in Black's view
    kinds = (board.pawns, board.knights, board.bishops, board.rooks, board.queens, board.kings)
    words = [side & kind for kind in kinds for side in (own, opponent)]
    own_words = zip(_MAX_PIECE_MOVES, words[::2], strict=True)
    most = sum(moves * word.bit_count() for moves, word in own_words)
    if most > MAX_MOVES and (moves := board.legal_moves.count()) > MAX_MOVES:
        raise FenError(
            f"cannot use {board.fen()!r}: it has {moves} legal moves, more than the {MAX_MOVES} "
            "supported"
        )
    en_passant = 0 if board.ep_square is None else 1 << board.ep_square
    words += [0, int(board.clean_castling_rights()), en_passant]
    for index, word in enumerate(words):
        position[index] = chess.flip_vertical(word) if white else word
    position[TURN] = 0 if white else ALL_SQUARES
    ply = 2 * (board.fullmove_number - 1) + (not white)
    position[COUNTERS] = min(board.halfmove_clock, 0xFFFF) | min(ply, 0xFFFF) << 16
    return position


def parse_fen(fen: str) -> chess.Board:
    """Parse a FEN, keeping Chess960 castling rights; raise FenError if it is malformed."""
    try:
        return chess.Board(fen, chess960=True)
    except ValueError as error:
        reason = str(error).partition(":")[0]  # after a colon, the message repeats the FEN
        raise FenError(f"not a FEN: {fen[:100]!r}: {reason}") from error


def from_fen(fen: str) -> Position:
    """Convert a FEN to a position, uint64[16].

    Raises FenError if the text is malformed, or the position is unplayable or has over MAX_MOVES
    legal moves; impossible material, such as ten pawns, is accepted. Drops castling rights without
    king and rook on their home squares, and an en-passant square that no pawn can have just passed.
    """
    return position_from_board(parse_fen(fen), fen)


def position_from_board(board: chess.Board, fen: str) -> Position:
    """Convert a board of `parse_fen` as `from_fen` does; change the board. Errors quote `fen`."""
    board.chess960 = False
    board.castling_rights = board.clean_castling_rights()
    if board.status() & chess.STATUS_INVALID_EP_SQUARE:
        board.ep_square = None
    status = board.status()
    if reasons := [reason for flag, reason in _UNPLAYABLE_REASONS.items() if status & flag]:
        raise FenError(f"not a playable position: {fen[:100]!r}: {', '.join(reasons)}")
    return from_board(board)


def to_board(position: Position) -> chess.Board:
    """Convert a position to a python-chess board with an empty move stack."""
    white = bool(position[TURN] == 0)
    words = [chess.flip_vertical(int(word)) if white else int(word) for word in position[:COUNTERS]]
    board = chess.Board(None)
    for index, word in enumerate(words[:12]):
        kind, own = chess.PIECE_TYPES[index // 2], index % 2 == 0
        for square in chess.scan_forward(word):
            board.set_piece_at(square, chess.Piece(kind, white == own))
    board.turn = white
    board.castling_rights = words[CASTLING]
    board.ep_square = words[EN_PASSANT].bit_length() - 1 if words[EN_PASSANT] else None
    counters = int(position[COUNTERS])
    board.halfmove_clock = counters & 0xFFFF
    board.fullmove_number = (counters >> 16) // 2 + 1
    return board


def to_fen(position: Position) -> str:
    """Return the FEN of a position, with the en-passant square after every double push."""
    return to_board(position).fen(en_passant="fen")


@njit(**NO_REFCOUNT)
def mirror(position: Any) -> None:
    """Mirror the position in place: flip it top to bottom, swap the colors, change the turn."""
    for index in range(0, 12, 2):
        own = flip(position[index])
        position[index] = flip(position[index + 1])
        position[index + 1] = own
    position[TURN] = ~position[TURN]
    position[CASTLING] = flip(position[CASTLING])
    position[EN_PASSANT] = flip(position[EN_PASSANT])


@njit(**NO_REFCOUNT)
def occupied_squares(board: Any) -> Any:
    """Return the occupied squares of a position or of planes, uint64."""
    occupied = EMPTY
    for word in range(TURN):
        occupied |= board[word]
    return occupied


@njit(**NO_REFCOUNT)
def find_piece_word(board: Any, square: Any, side: Any) -> Any:
    """Return the index of the word with the piece of `side` on a square (one bit), or -1."""
    for word in range(side, TURN, 2):
        if board[word] & square != EMPTY:
            return word
    return -1


@njit(**NO_REFCOUNT)
def push(position: Any, source: Any, target: Any, promotion: Any) -> None:
    """Play a legal move in place; afterwards, the position is in the view of the other side.

    `source` and `target` are bit indices in the mover's view. `promotion` is a python-chess piece
    type (2 knight .. 5 queen), or 0. Castling is the king's two-square move. The move is not
    checked: an illegal one leaves a meaningless position.
    """
    start, end = bit(source), bit(target)
    word = 0
    for index in range(0, 12, 2):
        if position[index] & start != EMPTY:
            word = index
            break
    halfmove = (position[COUNTERS] & HALFMOVE_MASK) + U(1)
    if halfmove > HALFMOVE_MASK:
        halfmove = HALFMOVE_MASK
    for index in range(1, 11, 2):
        if position[index] & end != EMPTY:
            position[index] &= ~end
            halfmove = U(0)
    en_passant = position[EN_PASSANT]
    position[EN_PASSANT] = U(0)
    position[word] ^= start | end
    if word == PAWN:
        halfmove = U(0)
        if end == en_passant:
            position[PAWN + 1] &= ~(end << U(8))
        elif start & RANK_2 != EMPTY and end << U(16) == start:
            position[EN_PASSANT] = end << U(8)
        elif end & RANK_8 != EMPTY:
            position[PAWN] ^= end
            # without a promotion piece, promote to a queen
            piece = U(promotion) if U(2) <= U(promotion) < U(5) else U(5)
            position[U(2) * (piece - U(1))] |= end
    elif word == KING:
        position[CASTLING] &= ~RANK_1
        if end == start << U(2):
            position[ROOK] ^= (end << U(1)) | (end >> U(1))
        elif end == start >> U(2):
            position[ROOK] ^= (end >> U(2)) | (end << U(1))
    position[CASTLING] &= ~(start | end)
    position[COUNTERS] = (((position[COUNTERS] >> U(16)) + U(1)) << U(16)) | halfmove
    mirror(position)


@njit(**NO_REFCOUNT, inline="always")
def _mix(total: Any, word: Any) -> Any:
    """Mix a word into the running hash `total`; for each word, this is a bijection of `total`."""
    total = (total ^ word) * FIRST_FACTOR
    return total ^ (total >> U(29))


@njit(**NO_REFCOUNT)
def hash_position(position: Any, en_passant_legal: Any) -> Any:
    """Hash pieces, turn, castling rights and the en-passant square, uint64.

    The square counts only if a capture there is legal, so that equal hashes mean repetitions.
    `en_passant_legal` is 1 or 0 as uint64, because a bool would cost replay a quarter of its speed.
    Words are mixed in independent chains, because the processor would stall on one chain of fifteen
    multiplications. The finalizer is splitmix64's (Steele, Lea and Flood 2014).
    """
    first, second = GOLDEN_GAMMA, U(0xD1B5_4A32_D192_ED03)
    third, fourth = U(0xABC9_8388_FB8F_AC03), U(0x8CB9_2BA7_2F3D_8DD7)
    for index in range(0, 12, 4):
        first = _mix(first, position[index])
        second = _mix(second, position[index + 1])
        third = _mix(third, position[index + 2])
        fourth = _mix(fourth, position[index + 3])
    first = _mix(first, position[TURN])
    second = _mix(second, position[CASTLING])
    third = _mix(third, position[EN_PASSANT] * U(en_passant_legal))
    total = _mix(_mix(_mix(first, second), third), fourth)
    total = (total ^ (total >> U(30))) * SECOND_FACTOR
    return total ^ (total >> U(31))


@njit(**NO_REFCOUNT)
def castling_bits(position: Any) -> Any:
    """Pack castling rights, uint64: the mover's king side 1, queen side 2; the opponent's 4, 8."""
    rights = position[CASTLING]
    return (
        (rights >> U(63))
        | ((rights >> U(56)) & U(1)) << U(1)
        | ((rights >> U(7)) & U(1)) << U(2)
        | (rights & U(1)) << U(3)
    )


@njit(**NO_REFCOUNT)
def en_passant_file(position: Any) -> Any:
    """Return the file (0 = a) of the en-passant square, uint64; 255 if there is none."""
    board = position[EN_PASSANT]
    return U(255) if board == U(0) else lowest_square(board) & U(7)
