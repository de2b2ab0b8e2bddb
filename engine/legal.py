"""Legal moves set-wise: 64 planes of from-squares, one per (direction, distance), with no move list.

For each direction all sliders are shifted at once; what lands on an allowed square, shifted back, is a plane of
from-squares. Pins and checks come from rays out of the king; king steps avoid the squares the opponent attacks with the king
taken off the board. Legend: plane 13 + t holds the from-squares of legal moves of type t (engine/encoding.py's table).
"""

from typing import Any

import numpy as np
from numba import njit

from engine.bitboard import (
    ALL,
    EMPTY,
    NOT_A,
    NOT_AB,
    NOT_GH,
    NOT_H,
    RANK_1,
    RANK_3,
    RANK_8,
    U,
    bit,
    king_attacks,
    knight_attacks,
    lowest,
    popcount,
)
from engine.position import BISHOP, CASTLING, EN_PASSANT, KING, KNIGHT, PAWN, QUEEN, ROOK, push

MOVE_PLANES = 13
"""Index of the first move plane: planes 0..12 are the pieces and the turn."""
TYPES = 64
KNIGHT_TYPES = 56
CASTLE_EAST, CASTLE_WEST = 10, 14
"""Types of the king's two-square moves: distance 2, directions E and W."""

# Directions 0..7 = N NE E SE S SW W NW: how far the bit moves, whether towards lower bits, what may be landed on.
_AMOUNT = np.array([8, 7, 1, 9, 8, 7, 1, 9], dtype=np.uint64)
_UP = np.array([True, True, False, False, False, False, True, True])
_LANDING = np.array([ALL, NOT_A, NOT_A, NOT_A, ALL, NOT_H, NOT_H, NOT_H], dtype=np.uint64)
# Knight types 56..63: steps (1,2) (2,1) (2,-1) (1,-2) (-1,-2) (-2,-1) (-2,1) (-1,2).
_KNIGHT_AMOUNT = np.array([15, 6, 10, 17, 15, 6, 10, 17], dtype=np.uint64)
_KNIGHT_UP = np.array([True, True, False, False, False, False, True, True])
_KNIGHT_LANDING = np.array([NOT_A, NOT_AB, NOT_AB, NOT_A, NOT_H, NOT_GH, NOT_GH, NOT_H], dtype=np.uint64)
_CASTLE_EAST_ROOK, _CASTLE_WEST_ROOK = U(1 << 63), U(1 << 56)
_CASTLE_EAST_EMPTY, _CASTLE_WEST_EMPTY = U(0b110 << 60), U(0b1110 << 56)
_CASTLE_EAST_SAFE, _CASTLE_WEST_SAFE = U(0b110 << 60), U(0b1100 << 56)


@njit(cache=True, nogil=True, inline="always")
def _shift(board: Any, direction: Any) -> Any:
    """Move every square of a board one step in a direction, dropping what leaves the board."""
    if _UP[direction]:
        return (board >> _AMOUNT[direction]) & _LANDING[direction]
    return (board << _AMOUNT[direction]) & _LANDING[direction]


@njit(cache=True, nogil=True)
def _attacked(position: Any, occupied: Any) -> Any:
    """Give every square the opponent attacks when the board holds `occupied`, uint64."""
    pawns = position[PAWN + 1]
    attacks = ((pawns << U(9)) & NOT_A) | ((pawns << U(7)) & NOT_H)
    attacks |= knight_attacks(position[KNIGHT + 1]) | king_attacks(position[KING + 1])
    straight = position[ROOK + 1] | position[QUEEN + 1]
    diagonal = position[BISHOP + 1] | position[QUEEN + 1]
    empty = ~occupied
    for direction in range(8):
        current = diagonal if direction & 1 else straight
        while current != EMPTY:
            current = _shift(current, direction)
            attacks |= current
            current &= empty
    return attacks


@njit(cache=True, nogil=True)
def _rays(position: Any, own: Any, opponent: Any) -> Any:
    """Walk the eight rays out of the king: give (check mask, checkers, pinned on the lines N, NE, E, SE).

    The check mask holds the squares that answer a sliding check: those between, and the checker. What is pinned on a line
    (uint64, own pieces between the king and a slider) may move along it alone.
    """
    straight = position[ROOK + 1] | position[QUEEN + 1]
    diagonal = position[BISHOP + 1] | position[QUEEN + 1]
    mask = pin_0 = pin_1 = pin_2 = pin_3 = EMPTY
    checkers = 0
    for direction in range(8):
        sliders = diagonal if direction & 1 else straight
        current = _shift(position[KING], direction)
        ray = current
        shield = EMPTY
        while current != EMPTY:
            if current & opponent != EMPTY:
                if current & sliders != EMPTY:
                    if shield == EMPTY:
                        mask |= ray
                        checkers += 1
                    elif direction & 3 == 0:
                        pin_0 |= shield
                    elif direction & 3 == 1:
                        pin_1 |= shield
                    elif direction & 3 == 2:
                        pin_2 |= shield
                    else:
                        pin_3 |= shield
                break
            if current & own != EMPTY:
                if shield != EMPTY:
                    break
                shield = current
            current = _shift(current, direction)
            ray |= current
    return mask, checkers, (pin_0, pin_1, pin_2, pin_3)


@njit(cache=True, nogil=True)
def _en_passant(position: Any, occupied: Any, planes: Any, direction: Any) -> None:
    """Add the en-passant capture in one direction (NE or NW) if the king is not left in check.

    Both pawns leave their squares at once, so it is tried on the board: this is the one capture that can uncover an attack
    along the rank that no pin shows.
    """
    target = position[EN_PASSANT]
    captured = target << U(8)
    behind = (target << U(7)) & NOT_H if direction == 1 else (target << U(9)) & NOT_A
    source = behind & position[PAWN]
    if source == EMPTY:
        return
    after = (occupied ^ source ^ captured) | target
    position[PAWN + 1] ^= captured
    attacked = _attacked(position, after)
    position[PAWN + 1] ^= captured
    if attacked & position[KING] == EMPTY:
        planes[MOVE_PLANES + direction] |= source


@njit(cache=True, nogil=True)
def _pawns(position: Any, planes: Any, empty: Any, captures: Any, target: Any, pinned: Any) -> None:
    """Add pushes and captures of the mover's pawns."""
    pawns = position[PAWN]
    anywhere = pinned[0] | pinned[1] | pinned[2] | pinned[3]
    free = pawns & ~anywhere
    pushers = free | (pawns & pinned[0])
    one = (pushers >> U(8)) & empty
    two = ((one & RANK_3) >> U(8)) & empty
    planes[MOVE_PLANES] |= (one & target) << U(8)
    planes[MOVE_PLANES + 8] |= (two & target) << U(16)
    east = (((free | (pawns & pinned[1])) >> U(7)) & NOT_A) & captures
    west = (((free | (pawns & pinned[3])) >> U(9)) & NOT_H) & captures
    planes[MOVE_PLANES + 1] |= east << U(7)
    planes[MOVE_PLANES + 7] |= west << U(9)


@njit(cache=True, nogil=True)
def _sliders_and_knights(position: Any, planes: Any, empty: Any, target: Any, pinned: Any) -> None:
    """Add the moves of bishops, rooks, queens and knights."""
    anywhere = pinned[0] | pinned[1] | pinned[2] | pinned[3]
    straight = position[ROOK] | position[QUEEN]
    diagonal = position[BISHOP] | position[QUEEN]
    for direction in range(8):
        movers = diagonal if direction & 1 else straight
        current = movers & (~anywhere | pinned[direction & 3])
        back = U(0)
        for distance in range(7):
            current = _shift(current, direction)
            if current == EMPTY:
                break
            back += _AMOUNT[direction]
            landed = current & target
            planes[MOVE_PLANES + 8 * distance + direction] |= landed << back if _UP[direction] else landed >> back
            current &= empty
    knights = position[KNIGHT] & ~anywhere
    if knights != EMPTY:
        for kind in range(8):
            amount, landing = _KNIGHT_AMOUNT[kind], _KNIGHT_LANDING[kind]
            if _KNIGHT_UP[kind]:
                planes[MOVE_PLANES + KNIGHT_TYPES + kind] = (((knights >> amount) & landing) & target) << amount
            else:
                planes[MOVE_PLANES + KNIGHT_TYPES + kind] = (((knights << amount) & landing) & target) >> amount


@njit(cache=True, nogil=True)
def _king(position: Any, planes: Any, own: Any, occupied: Any, checkers: Any) -> None:
    """Add king steps and castling."""
    king = position[KING]
    attacked = _attacked(position, occupied ^ king)
    safe = ~own & ~attacked
    for direction in range(8):
        if _shift(king, direction) & safe != EMPTY:
            planes[MOVE_PLANES + direction] |= king
    if checkers == 0 and position[CASTLING] & RANK_1 != EMPTY:
        rights = position[CASTLING]
        if (
            rights & _CASTLE_EAST_ROOK != EMPTY
            and (occupied & _CASTLE_EAST_EMPTY) | (attacked & _CASTLE_EAST_SAFE) == EMPTY
        ):
            planes[MOVE_PLANES + CASTLE_EAST] |= king
        if (
            rights & _CASTLE_WEST_ROOK != EMPTY
            and (occupied & _CASTLE_WEST_EMPTY) | (attacked & _CASTLE_WEST_SAFE) == EMPTY
        ):
            planes[MOVE_PLANES + CASTLE_WEST] |= king


@njit(cache=True, nogil=True)
def legal_planes(position: Any, planes: Any) -> Any:
    """Write planes 0..76 of a position into `planes` (uint64[77]) and give the number of checkers (0, 1, 2).

    Mover's view. The position must be playable (engine.position.FenError says what is not).
    """
    own = opponent = EMPTY
    for index in range(0, 12, 2):
        own |= position[index]
        opponent |= position[index + 1]
    for index in range(MOVE_PLANES):
        planes[index] = position[index]
    for index in range(MOVE_PLANES, MOVE_PLANES + TYPES):
        planes[index] = EMPTY
    occupied = own | opponent
    king = position[KING]
    mask, checkers, pinned = _rays(position, own, opponent)
    leapers = knight_attacks(king) & position[KNIGHT + 1]
    leapers |= (((king >> U(7)) & NOT_A) | ((king >> U(9)) & NOT_H)) & position[PAWN + 1]
    if leapers != EMPTY:
        checkers += np.int64(popcount(leapers))
        mask |= leapers
    _king(position, planes, own, occupied, checkers)
    if checkers > 1:
        return checkers
    target = ~own if checkers == 0 else mask
    _pawns(position, planes, ~occupied, opponent & target, target, pinned)
    _sliders_and_knights(position, planes, ~occupied, target, pinned)
    if position[EN_PASSANT] != EMPTY:
        _en_passant(position, occupied, planes, 1)
        _en_passant(position, occupied, planes, 7)
    return checkers


@njit(cache=True, nogil=True)
def en_passant_legal(position: Any, planes: Any) -> Any:
    """Tell whether an en-passant capture is among the legal moves of `planes` (uint64[77])."""
    if position[EN_PASSANT] == EMPTY:
        return False
    east = (planes[MOVE_PLANES + 1] & position[PAWN]) >> U(7)
    west = (planes[MOVE_PLANES + 7] & position[PAWN]) >> U(9)
    return ((east & NOT_A) | (west & NOT_H)) & position[EN_PASSANT] != EMPTY


@njit(cache=True, nogil=True)
def count_moves(position: Any, planes: Any) -> Any:
    """Count the legal moves of filled planes, a promotion as four, int64."""
    moves = U(0)
    for index in range(MOVE_PLANES, MOVE_PLANES + TYPES):
        moves += popcount(planes[index])
    seventh = position[PAWN] & (RANK_8 << U(8))
    for direction in (0, 1, 7):
        moves += U(3) * popcount(planes[MOVE_PLANES + direction] & seventh)
    return np.int64(moves)


@njit(cache=True, nogil=True)
def step_target(kind: Any, source: Any) -> Any:
    """Give the landing square (uint64) of a move of type `kind` from bit index `source`."""
    if kind >= KNIGHT_TYPES:
        amount, up = _KNIGHT_AMOUNT[kind - KNIGHT_TYPES], _KNIGHT_UP[kind - KNIGHT_TYPES]
    else:
        amount, up = _AMOUNT[kind & 7] * U((kind >> 3) + 1), _UP[kind & 7]
    return U(source) - amount if up else U(source) + amount


@njit(cache=True, nogil=True)
def perft(position: Any, depth: Any) -> Any:
    """Count the leaves of the legal move tree `depth` plies deep, int64 (promotions count as four moves)."""
    planes = np.empty(MOVE_PLANES + TYPES, dtype=np.uint64)
    legal_planes(position, planes)
    if depth <= 1:
        return count_moves(position, planes) if depth == 1 else np.int64(1)
    child = np.empty_like(position)
    seventh = position[PAWN] & (RANK_8 << U(8))
    leaves = np.int64(0)
    for kind in range(TYPES):
        sources = planes[MOVE_PLANES + kind]
        while sources != EMPTY:
            source = lowest(sources)
            sources &= sources - U(1)
            target = step_target(kind, source)
            first, last = (2, 6) if bit(source) & seventh != EMPTY else (0, 1)
            for promotion in range(first, last):
                child[:] = position
                push(child, source, target, promotion)
                leaves += perft(child, depth - 1)
    return leaves
