"""Find the pieces that can move to a square, to read SAN in a quarter of `legal_planes`'s time.

Rays from the square find the pieces that reach it. Rays from the king, on the board after the move,
show whether the move is legal. For castling and en passant, the caller uses `legal_planes`.
"""

from typing import Any

from numba import njit

from engine.board.bitboard import EMPTY, RANK_2, U, king_attacks, knight_attacks
from engine.board.movegen import (
    find_checks_and_pins,
    is_en_passant_legal,
    legal_planes,
    pawn_attacks_down,
    pawn_attacks_up,
)
from engine.board.position import BISHOP, EN_PASSANT, KING, KNIGHT, PAWN, QUEEN, ROOK
from engine.board.simd import alternate_lanes, broadcast, or_lanes, step
from engine.kernels import NO_REFCOUNT


@njit(**NO_REFCOUNT)
def _find_sliders(square: Any, occupied: Any, straight: Any, diagonal: Any) -> Any:
    """Return the `straight` and `diagonal` sliders that attack a square (one bit), uint64."""
    empty = broadcast(~occupied)
    current = reached = step(broadcast(square))
    for _ in range(6):
        current = step(current & empty)
        reached = reached | current
    return or_lanes(reached & alternate_lanes(straight, diagonal))


@njit(**NO_REFCOUNT)
def _find_reaching(position: Any, word: Any, square: Any, occupied: Any) -> Any:
    """Return the mover's pieces of kind `word` that reach a square, uint64; pins are ignored.

    The square must not hold one of the mover's pieces.
    """
    pieces = position[word]
    if word == PAWN:
        if square & occupied != EMPTY:
            return pawn_attacks_down(square) & pieces
        single = square << U(8)
        double = ((single & ~occupied) << U(8)) & RANK_2
        return (single | double) & pieces
    if word == KNIGHT:
        return knight_attacks(square) & pieces
    if word == KING:
        return king_attacks(square) & pieces
    return _find_sliders(
        square, occupied, EMPTY if word == BISHOP else pieces, EMPTY if word == ROOK else pieces
    )


@njit(**NO_REFCOUNT)
def _find_attackers(position: Any, square: Any, occupied: Any) -> Any:
    """Return the opponent's pieces that attack a square (one bit), uint64."""
    queens = position[QUEEN + 1]
    return (
        _find_sliders(square, occupied, position[ROOK + 1] | queens, position[BISHOP + 1] | queens)
        | (knight_attacks(square) & position[KNIGHT + 1])
        | (pawn_attacks_up(square) & position[PAWN + 1])
        | (king_attacks(square) & position[KING + 1])
    )


@njit(**NO_REFCOUNT)
def legal_movers(position: Any, word: Any, square: Any, sources: Any) -> Any:
    """Return the mover's pieces of kind `word` on `sources` that can move to a square, uint64.

    `square` is a bitboard with one bit. Castling and en passant are not considered. The position
    must be playable.
    """
    own = opponent = EMPTY
    for index in range(0, 12, 2):
        own |= position[index]
        opponent |= position[index + 1]
    if own & square != EMPTY:
        return EMPTY
    occupied, king = own | opponent, position[KING]
    _, checkers, pinned = find_checks_and_pins(position, own, occupied)
    checkers |= (knight_attacks(king) & position[KNIGHT + 1]) | (
        pawn_attacks_up(king) & position[PAWN + 1]
    )
    candidates = _find_reaching(position, word, square, occupied) & sources
    if word != KING and checkers | (or_lanes(pinned) & candidates) == EMPTY:
        return candidates
    legal = EMPTY
    while candidates != EMPTY:
        rest = candidates & (candidates - U(1))
        start = candidates ^ rest
        if (
            _find_attackers(position, square if word == KING else king, (occupied ^ start) | square)
            & ~square
            == EMPTY
        ):
            legal |= start
        candidates = rest
    return legal


@njit(**NO_REFCOUNT)
def can_capture_en_passant(position: Any, planes: Any) -> Any:
    """Return whether an en-passant capture is legal; `planes` (uint64[77]) is scratch."""
    if pawn_attacks_down(position[EN_PASSANT]) & position[PAWN] == EMPTY:
        return False
    legal_planes(position, planes)
    return is_en_passant_legal(position, planes)
