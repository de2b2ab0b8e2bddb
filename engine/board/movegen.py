"""Generate legal moves as 64 planes of from-squares, one per move type, without a move list.

Plane 13 + t holds the from-squares of legal moves of type t (the table is in
engine/encoding/planes.py). All sliders are shifted in each direction at once. Those that land on
allowed squares are shifted back, which gives a plane of from-squares. Rays from the king find pins
and checks. The king avoids the squares that the opponent attacks once the king is taken off the
board.
"""

from typing import Any

import numpy as np
from numba import njit

from engine.board import simd
from engine.board.bitboard import (
    DIRECTIONS,
    EMPTY,
    KNIGHT_STEPS,
    NOT_FILE_A,
    NOT_FILE_H,
    RANK_1,
    RANK_3,
    RANK_8,
    U,
    bit,
    king_attacks,
    knight_attacks,
    lowest_square,
    popcount,
)
from engine.board.position import (
    BISHOP,
    CASTLING,
    EN_PASSANT,
    KING,
    KNIGHT,
    OPPONENT,
    PAWN,
    QUEEN,
    ROOK,
    hash_position,
    push,
)
from engine.kernels import NO_REFCOUNT

MOVE_PLANES = 13
"""Index of the first move plane: planes 0..12 are the pieces and the side to move."""
MOVE_TYPES = 64
FIRST_KNIGHT_TYPE = 56
"""First of the eight move types of knights."""
CASTLE_EAST, CASTLE_WEST = 10, 14
"""Types of the king's two-square moves: distance 2, directions E and W."""

NORTH, NORTH_EAST, NORTH_WEST = 0, 1, 7
"""Indices of directions, which are also the move types of steps of one square."""
_SLIDE_ROTATIONS = [
    distance * turn % 64 for distance in range(1, 8) for turn in simd.rotations(DIRECTIONS)
]
_ROTATIONS = np.array(_SLIDE_ROTATIONS + simd.rotations(KNIGHT_STEPS), dtype=np.uint64)
"""Bits by which a move of each type rotates its from-square to the left, modulo 64."""
_CASTLE_EAST_ROOK, _CASTLE_WEST_ROOK = U(1 << 63), U(1 << 56)
_CASTLE_EAST_EMPTY, _CASTLE_WEST_EMPTY = U(0b110 << 60), U(0b1110 << 56)
_CASTLE_EAST_SAFE, _CASTLE_WEST_SAFE = U(0b110 << 60), U(0b1100 << 56)


@njit(**NO_REFCOUNT)
def attacked_by(position: Any, side: Any, pawns: Any, occupied: Any) -> Any:
    """Return the squares that a side attacks, uint64.

    `pawns` are the squares that its pawns attack. The caller computes them, because their direction
    depends on the view.
    """
    queens = position[QUEEN + side]
    current = simd.alternate_lanes(position[ROOK + side] | queens, position[BISHOP + side] | queens)
    empty = simd.broadcast(~occupied)
    current = simd.step(current)
    reached = current
    for _ in range(6):
        current = simd.step(current & empty)
        reached = reached | current
    return (
        pawns
        | knight_attacks(position[KNIGHT + side])
        | king_attacks(position[KING + side])
        | simd.or_lanes(reached)
    )


@njit(**NO_REFCOUNT, inline="always")
def pawn_attacks_down(pawns: Any) -> Any:
    """Return the squares that the opponent's pawns attack, uint64."""
    return ((pawns << U(9)) & NOT_FILE_A) | ((pawns << U(7)) & NOT_FILE_H)


@njit(**NO_REFCOUNT, inline="always")
def pawn_attacks_up(pawns: Any) -> Any:
    """Return the squares that the mover's pawns attack, uint64."""
    return ((pawns >> U(7)) & NOT_FILE_A) | ((pawns >> U(9)) & NOT_FILE_H)


@njit(**NO_REFCOUNT)
def find_checks_and_pins(position: Any, own: Any, occupied: Any) -> Any:
    """Follow the eight rays from the king; return (check mask, sliding checkers, pinned).

    The check mask (uint64) holds the squares where a piece can block or capture a sliding checker.
    The checkers are uint64. `pinned` (Lanes) holds the mover's pieces between the king and an
    opposing slider, which can move only along that line.
    """
    sliders = simd.alternate_lanes(
        position[ROOK + 1] | position[QUEEN + 1], position[BISHOP + 1] | position[QUEEN + 1]
    )
    empty, mine = simd.broadcast(~occupied), simd.broadcast(own)
    near = ray = simd.step(simd.broadcast(position[KING]))  # from the king to the first piece
    far = behind = simd.broadcast(EMPTY)  # from an own piece to the next piece
    for _ in range(6):
        far = simd.step((far & empty) | (near & mine))
        near = simd.step(near & empty)
        ray = ray | near
        behind = behind | far
    checking = ray & sliders
    pinned = simd.keep_where(behind & sliders, ray & mine)
    return simd.or_lanes(simd.keep_where(checking, ray)), simd.or_lanes(checking), pinned


@njit(**NO_REFCOUNT)
def _add_en_passant(position: Any, occupied: Any, planes: Any, direction: Any) -> None:
    """Add the en-passant capture in one direction (NE or NW) if the king is not left in check.

    Two pawns leave the rank at once, which can open an attack on the king although neither is
    pinned. So this checks the position after the capture.
    """
    target = position[EN_PASSANT]
    captured = target << U(8)
    behind = (target << U(9)) & NOT_FILE_A
    if direction == NORTH_EAST:
        behind = (target << U(7)) & NOT_FILE_H
    source = behind & position[PAWN]
    if source == EMPTY:
        return
    after = (occupied ^ source ^ captured) | target
    if (
        attacked_by(position, OPPONENT, pawn_attacks_down(position[PAWN + 1] ^ captured), after)
        & position[KING]
        == EMPTY
    ):
        planes[MOVE_PLANES + direction] |= source


@njit(**NO_REFCOUNT)
def _add_pawn_moves(
    position: Any, planes: Any, empty: Any, captures: Any, target: Any, stuck: Any
) -> None:
    """Add pawn pushes and captures; pawns in a lane of `stuck` are pinned on another line."""
    pawns = position[PAWN]
    single = ((pawns & ~simd.get_lane(stuck, NORTH)) >> U(8)) & empty
    double = ((single & RANK_3) >> U(8)) & empty
    planes[MOVE_PLANES] |= (single & target) << U(8)
    planes[MOVE_PLANES + 8] |= (double & target) << U(16)
    east = (((pawns & ~simd.get_lane(stuck, NORTH_EAST)) >> U(7)) & NOT_FILE_A) & captures
    west = (((pawns & ~simd.get_lane(stuck, NORTH_WEST)) >> U(9)) & NOT_FILE_H) & captures
    planes[MOVE_PLANES + 1] |= east << U(7)
    planes[MOVE_PLANES + 7] |= west << U(9)


@njit(**NO_REFCOUNT)
def _write_piece_moves(
    position: Any, planes: Any, empty: Any, target: Any, stuck: Any, king_to: Any
) -> None:
    """Write the planes of all pieces' moves except castling; pawns follow in `_add_pawn_moves`.

    The king can move to `king_to`, and other pieces to `target`. Pieces in a lane of `stuck` are
    pinned on another line.
    """
    straight = position[ROOK] | position[QUEEN]
    diagonal = position[BISHOP] | position[QUEEN]
    wanted, passable = simd.broadcast(target), simd.broadcast(empty)
    king = simd.broadcast(position[KING])
    current = simd.step(simd.alternate_lanes(straight, diagonal) & ~stuck)
    kings = simd.keep_where(simd.step(king) & simd.broadcast(king_to), king)
    simd.store_lanes(planes, MOVE_PLANES, simd.steps_back(current & wanted, U(1)) | kings)
    for distance in range(1, 7):
        current = simd.step(current & passable)
        sources = simd.steps_back(current & wanted, U(distance + 1))
        simd.store_lanes(planes, MOVE_PLANES + 8 * distance, sources)
    knights = simd.knight_step(simd.broadcast(position[KNIGHT] & ~simd.or_lanes(stuck)))
    simd.store_lanes(
        planes, MOVE_PLANES + FIRST_KNIGHT_TYPE, simd.knight_step_back(knights & wanted)
    )


@njit(**NO_REFCOUNT)
def _add_castling(position: Any, planes: Any, occupied: Any, attacked: Any) -> None:
    """Add castling moves to the planes; call it only if the king is not in check."""
    rights = position[CASTLING]
    if (
        rights & _CASTLE_EAST_ROOK != EMPTY
        and (occupied & _CASTLE_EAST_EMPTY) | (attacked & _CASTLE_EAST_SAFE) == EMPTY
    ):
        planes[MOVE_PLANES + CASTLE_EAST] |= position[KING]
    if (
        rights & _CASTLE_WEST_ROOK != EMPTY
        and (occupied & _CASTLE_WEST_EMPTY) | (attacked & _CASTLE_WEST_SAFE) == EMPTY
    ):
        planes[MOVE_PLANES + CASTLE_WEST] |= position[KING]


@njit(**NO_REFCOUNT)
def legal_planes(position: Any, planes: Any) -> Any:
    """Write the planes of a position into `planes` (uint64[77]); return the number of checkers.

    The position must be playable, as `from_fen` ensures.
    """
    own = opponent = EMPTY
    for index in range(0, 12, 2):
        own |= position[index]
        opponent |= position[index + 1]
    for index in range(MOVE_PLANES):
        planes[index] = position[index]
    occupied = own | opponent
    king = position[KING]
    mask, checking, pinned = find_checks_and_pins(position, own, occupied)
    leapers = knight_attacks(king) & position[KNIGHT + 1]
    leapers |= pawn_attacks_up(king) & position[PAWN + 1]
    checkers = np.int64(popcount(checking | leapers))
    target = ~own
    if checkers > 0:
        target = mask | leapers if checkers == 1 else EMPTY
    pawns = pawn_attacks_down(position[PAWN + 1])
    attacked = attacked_by(position, OPPONENT, pawns, occupied ^ king)
    stuck = simd.broadcast(simd.or_lanes(pinned)) & ~simd.or_opposite_lanes(pinned)
    _write_piece_moves(position, planes, ~occupied, target, stuck, ~own & ~attacked)
    _add_pawn_moves(position, planes, ~occupied, opponent & target, target, stuck)
    if checkers == 0 and position[CASTLING] & RANK_1 != EMPTY:
        _add_castling(position, planes, occupied, attacked)
    if position[EN_PASSANT] != EMPTY and checkers < 2:
        for direction in (NORTH_EAST, NORTH_WEST):
            _add_en_passant(position, occupied, planes, direction)
    return checkers


@njit(**NO_REFCOUNT)
def is_en_passant_legal(position: Any, planes: Any) -> Any:
    """Return whether the planes (uint64[77]) of a position have a legal en-passant capture."""
    if position[EN_PASSANT] == EMPTY:
        return False
    east = (planes[MOVE_PLANES + 1] & position[PAWN]) >> U(7)
    west = (planes[MOVE_PLANES + 7] & position[PAWN]) >> U(9)
    return ((east & NOT_FILE_A) | (west & NOT_FILE_H)) & position[EN_PASSANT] != EMPTY


@njit(**NO_REFCOUNT)
def position_key(position: Any, planes: Any) -> Any:
    """Return a position's hash for the repetition rule, uint64; `planes` are its 77 planes."""
    return hash_position(position, U(is_en_passant_legal(position, planes)))


@njit(**NO_REFCOUNT)
def has_no_legal_move(planes: Any) -> Any:
    """Return whether planes (uint64[77]) have no legal move."""
    moves = EMPTY
    for index in range(MOVE_PLANES, MOVE_PLANES + MOVE_TYPES):
        moves |= planes[index]
    return moves == EMPTY


@njit(**NO_REFCOUNT)
def count_moves(position: Any, planes: Any) -> Any:
    """Count the legal moves of planes (uint64[77]), int64; a promotion counts as four."""
    moves = U(0)
    for index in range(MOVE_PLANES, MOVE_PLANES + MOVE_TYPES):
        moves += popcount(planes[index])
    seventh = position[PAWN] & (RANK_8 << U(8))
    for direction in (0, 1, 7):
        moves += U(3) * popcount(planes[MOVE_PLANES + direction] & seventh)
    return np.int64(moves)


@njit(**NO_REFCOUNT)
def step_target(kind: Any, source: Any) -> Any:
    """Return the to-square (bit index, uint64) of a move of type `kind` from `source`."""
    return (U(source) + _ROTATIONS[kind]) & U(63)


@njit(cache=True, nogil=True)
def perft(position: Any, depth: Any) -> Any:
    """Count the leaves of the tree of legal moves `depth` plies deep, int64."""
    planes = np.empty(MOVE_PLANES + MOVE_TYPES, dtype=np.uint64)
    legal_planes(position, planes)
    if depth <= 1:
        return count_moves(position, planes) if depth == 1 else np.int64(1)
    child = np.empty_like(position)
    seventh = position[PAWN] & (RANK_8 << U(8))
    leaves = np.int64(0)
    for kind in range(MOVE_TYPES):
        sources = planes[MOVE_PLANES + kind]
        while sources != EMPTY:
            source = lowest_square(sources)
            sources &= sources - U(1)
            target = step_target(kind, source)
            first, last = (2, 6) if bit(source) & seventh != EMPTY else (0, 1)
            for promotion in range(first, last):
                child[:] = position
                push(child, source, target, promotion)
                leaves += perft(child, depth - 1)
    return leaves
