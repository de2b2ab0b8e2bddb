"""Find the pieces that can move to a square, to read SAN.

This takes a quarter of the time of generating all legal moves. Rays from the square find the pieces
that reach it. Rays from the king, on the board after the move, show whether the move is legal.
`legal_planes` handles castling and en passant.
"""

from typing import Any

from numba import njit

from engine.board.bitboard import EMPTY, RANK_2, U, king_attacks, knight_attacks
from engine.board.movegen import (
    en_passant_legal,
    legal_planes,
    pawn_attacks_down,
    pawn_attacks_up,
    rays,
)
from engine.board.position import BISHOP, EN_PASSANT, KING, KNIGHT, PAWN, QUEEN, ROOK
from engine.board.simd import alternate, any_lane, everywhere, step
from engine.kernels import BORROWING


@njit(**BORROWING)
def _sliders_to(square: Any, occupied: Any, straight: Any, diagonal: Any) -> Any:
    """Return the sliders of `straight` and `diagonal` that attack a square (one bit), uint64."""
    empty = everywhere(~occupied)
    line = seen = step(everywhere(square))
    for _ in range(6):
        line = step(line & empty)
        seen = seen | line
    return any_lane(seen & alternate(straight, diagonal))


@njit(**BORROWING)
def _reaching(position: Any, word: Any, square: Any, occupied: Any) -> Any:
    """Return the mover's pieces of kind `word` that reach a square, uint64; pins are ignored.

    The square must not hold an own piece.
    """
    pieces = position[word]
    if word == PAWN:
        if square & occupied != EMPTY:
            return pawn_attacks_down(square) & pieces
        one = square << U(8)
        two = ((one & ~occupied) << U(8)) & RANK_2
        return (one | two) & pieces
    if word == KNIGHT:
        return knight_attacks(square) & pieces
    if word == KING:
        return king_attacks(square) & pieces
    return _sliders_to(
        square, occupied, EMPTY if word == BISHOP else pieces, EMPTY if word == ROOK else pieces
    )


@njit(**BORROWING)
def _attackers(position: Any, square: Any, occupied: Any) -> Any:
    """Return the opponent's pieces that attack a square (one bit), uint64."""
    queens = position[QUEEN + 1]
    return (
        _sliders_to(square, occupied, position[ROOK + 1] | queens, position[BISHOP + 1] | queens)
        | (knight_attacks(square) & position[KNIGHT + 1])
        | (pawn_attacks_up(square) & position[PAWN + 1])
        | (king_attacks(square) & position[KING + 1])
    )


@njit(**BORROWING)
def legal_movers(position: Any, word: Any, square: Any, sources: Any) -> Any:
    """Return the pieces on `sources` that can move to a target square (one bit), uint64.

    Castling and en passant are not considered. The position must be playable.
    """
    own = opponent = EMPTY
    for index in range(0, 12, 2):
        own |= position[index]
        opponent |= position[index + 1]
    if own & square != EMPTY:
        return EMPTY
    occupied, king = own | opponent, position[KING]
    _, checkers, pinned = rays(position, own, occupied)
    checkers |= (knight_attacks(king) & position[KNIGHT + 1]) | (
        pawn_attacks_up(king) & position[PAWN + 1]
    )
    left = _reaching(position, word, square, occupied) & sources
    if word != KING and checkers | (any_lane(pinned) & left) == EMPTY:
        return left
    legal = EMPTY
    while left != EMPTY:
        rest = left & (left - U(1))
        start = left ^ rest
        if (
            _attackers(position, square if word == KING else king, (occupied ^ start) | square)
            & ~square
            == EMPTY
        ):
            legal |= start
        left = rest
    return legal


@njit(**BORROWING)
def may_capture_en_passant(position: Any, planes: Any) -> Any:
    """Return whether an en-passant capture is legal; `planes` (uint64[77]) is scratch."""
    if pawn_attacks_down(position[EN_PASSANT]) & position[PAWN] == EMPTY:
        return False
    legal_planes(position, planes)
    return en_passant_legal(position, planes)
