"""Generate legal moves as 64 planes of from-squares, one per move type, without a move list.

All sliders are shifted in each direction at once. Those that land on allowed squares are shifted
back to give a plane of from-squares. Rays from the king find pins and checks. The king avoids the
squares that the opponent attacks once the king is taken off the board. Plane 13 + t holds the
from-squares of legal moves of type t (see the table in engine/encoding/planes.py).
"""

from typing import Any

import numpy as np
from numba import njit

from engine.board import simd
from engine.board.bitboard import (
    DIRECTIONS,
    EMPTY,
    KNIGHT_STEPS,
    NOT_A,
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
    key,
    push,
)
from engine.kernels import BORROWING

MOVE_PLANES = 13
"""Index of the first move plane: planes 0..12 are the pieces and the side to move."""
MOVE_TYPES = 64
KNIGHT_TYPES = 56
CASTLE_EAST, CASTLE_WEST = 10, 14
"""Types of the king's two-square moves: distance 2, directions E and W."""

NORTH, NORTH_EAST, NORTH_WEST = 0, 1, 7
_SLIDES = [distance * turn % 64 for distance in range(1, 8) for turn in simd.turns(DIRECTIONS)]
_TURNS = np.array(_SLIDES + simd.turns(KNIGHT_STEPS), dtype=np.uint64)
_CASTLE_EAST_ROOK, _CASTLE_WEST_ROOK = U(1 << 63), U(1 << 56)
_CASTLE_EAST_EMPTY, _CASTLE_WEST_EMPTY = U(0b110 << 60), U(0b1110 << 56)
_CASTLE_EAST_SAFE, _CASTLE_WEST_SAFE = U(0b110 << 60), U(0b1100 << 56)


@njit(**BORROWING)
def attacked_by(position: Any, side: Any, pawns: Any, occupied: Any) -> Any:
    """Return the squares that a side attacks, uint64.

    `pawns` are the squares that its pawns attack; the caller knows which way they move.
    """
    queens = position[QUEEN + side]
    current = simd.alternate(position[ROOK + side] | queens, position[BISHOP + side] | queens)
    empty = simd.everywhere(~occupied)
    current = simd.step(current)
    found = current
    for _ in range(6):
        current = simd.step(current & empty)
        found = found | current
    return (
        pawns
        | knight_attacks(position[KNIGHT + side])
        | king_attacks(position[KING + side])
        | simd.any_lane(found)
    )


@njit(**BORROWING, inline="always")
def pawn_attacks_down(pawns: Any) -> Any:
    """Return the squares that the opponent's pawns attack, uint64."""
    return ((pawns << U(9)) & NOT_A) | ((pawns << U(7)) & NOT_H)


@njit(**BORROWING, inline="always")
def pawn_attacks_up(pawns: Any) -> Any:
    """Return the squares that the mover's pawns attack, uint64."""
    return ((pawns >> U(7)) & NOT_A) | ((pawns >> U(9)) & NOT_H)


@njit(**BORROWING)
def rays(position: Any, own: Any, occupied: Any) -> Any:
    """Follow the eight rays from the king; return (check mask, sliding checkers, pinned).

    The check mask (uint64) holds the squares on which a piece answers a sliding check: those
    between king and checker, and the checker's own. The checkers are uint64 too. `pinned` (Lanes)
    holds the own pieces between the king and a slider; they can move only along that line.
    """
    sliders = simd.alternate(
        position[ROOK + 1] | position[QUEEN + 1], position[BISHOP + 1] | position[QUEEN + 1]
    )
    empty, mine = simd.everywhere(~occupied), simd.everywhere(own)
    near = ray = simd.step(simd.everywhere(position[KING]))  # up to the first piece
    far = behind = simd.everywhere(EMPTY)  # past an own piece, up to the next
    for _ in range(6):
        far = simd.step((far & empty) | (near & mine))
        near = simd.step(near & empty)
        ray = ray | near
        behind = behind | far
    checking = ray & sliders
    pinned = simd.where(behind & sliders, ray & mine)
    return simd.any_lane(simd.where(checking, ray)), simd.any_lane(checking), pinned


@njit(**BORROWING)
def _en_passant(position: Any, occupied: Any, planes: Any, direction: Any) -> None:
    """Add the en-passant capture in one direction (NE or NW) if the king is not left in check.

    Both pawns leave their rank at once, which can open an attack that the pins do not show, so the
    position after the capture is checked.
    """
    target = position[EN_PASSANT]
    captured = target << U(8)
    behind = (target << U(9)) & NOT_A
    if direction == NORTH_EAST:
        behind = (target << U(7)) & NOT_H
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


@njit(**BORROWING)
def _pawns(position: Any, planes: Any, empty: Any, captures: Any, target: Any, stuck: Any) -> None:
    """Add pawn pushes and captures; pawns in a lane of `stuck` cannot move in its direction."""
    pawns = position[PAWN]
    one = ((pawns & ~simd.lane(stuck, NORTH)) >> U(8)) & empty
    two = ((one & RANK_3) >> U(8)) & empty
    planes[MOVE_PLANES] |= (one & target) << U(8)
    planes[MOVE_PLANES + 8] |= (two & target) << U(16)
    east = (((pawns & ~simd.lane(stuck, NORTH_EAST)) >> U(7)) & NOT_A) & captures
    west = (((pawns & ~simd.lane(stuck, NORTH_WEST)) >> U(9)) & NOT_H) & captures
    planes[MOVE_PLANES + 1] |= east << U(7)
    planes[MOVE_PLANES + 7] |= west << U(9)


@njit(**BORROWING)
def _pieces(position: Any, planes: Any, empty: Any, target: Any, stuck: Any, king_to: Any) -> None:
    """Write the move planes of all pieces except pawns.

    The king can move to `king_to`, other pieces to `target`.
    """
    straight = position[ROOK] | position[QUEEN]
    diagonal = position[BISHOP] | position[QUEEN]
    wanted, passable = simd.everywhere(target), simd.everywhere(empty)
    king = simd.everywhere(position[KING])
    current = simd.step(simd.alternate(straight, diagonal) & ~stuck)
    kings = simd.where(simd.step(king) & simd.everywhere(king_to), king)
    simd.store(planes, MOVE_PLANES, simd.steps_back(current & wanted, U(1)) | kings)
    for distance in range(1, 7):
        current = simd.step(current & passable)
        sources = simd.steps_back(current & wanted, U(distance + 1))
        simd.store(planes, MOVE_PLANES + 8 * distance, sources)
    knights = simd.knight_step(simd.everywhere(position[KNIGHT] & ~simd.any_lane(stuck)))
    simd.store(planes, MOVE_PLANES + KNIGHT_TYPES, simd.knight_step_back(knights & wanted))


@njit(**BORROWING)
def _castling(position: Any, planes: Any, occupied: Any, attacked: Any) -> None:
    """Add castling moves; the king must not be in check."""
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


@njit(**BORROWING)
def legal_planes(position: Any, planes: Any) -> Any:
    """Write the planes of a position into `planes` (uint64[77]); return the checker count, 0..2.

    Mover's view. The position must be playable; `from_fen` checks this.
    """
    own = opponent = EMPTY
    for index in range(0, 12, 2):
        own |= position[index]
        opponent |= position[index + 1]
    for index in range(MOVE_PLANES):
        planes[index] = position[index]
    occupied = own | opponent
    king = position[KING]
    mask, checking, pinned = rays(position, own, occupied)
    leapers = knight_attacks(king) & position[KNIGHT + 1]
    leapers |= pawn_attacks_up(king) & position[PAWN + 1]
    checkers = np.int64(popcount(checking | leapers))
    target = ~own
    if checkers > 0:
        target = mask | leapers if checkers == 1 else EMPTY
    pawns = pawn_attacks_down(position[PAWN + 1])
    attacked = attacked_by(position, OPPONENT, pawns, occupied ^ king)
    stuck = simd.everywhere(simd.any_lane(pinned)) & ~simd.both_ways(pinned)
    _pieces(position, planes, ~occupied, target, stuck, ~own & ~attacked)
    _pawns(position, planes, ~occupied, opponent & target, target, stuck)
    if checkers == 0 and position[CASTLING] & RANK_1 != EMPTY:
        _castling(position, planes, occupied, attacked)
    if position[EN_PASSANT] != EMPTY and checkers < 2:
        for direction in (NORTH_EAST, NORTH_WEST):
            _en_passant(position, occupied, planes, direction)
    return checkers


@njit(**BORROWING)
def en_passant_legal(position: Any, planes: Any) -> Any:
    """Return whether an en-passant capture is among the legal moves of `planes` (uint64[77])."""
    if position[EN_PASSANT] == EMPTY:
        return False
    east = (planes[MOVE_PLANES + 1] & position[PAWN]) >> U(7)
    west = (planes[MOVE_PLANES + 7] & position[PAWN]) >> U(9)
    return ((east & NOT_A) | (west & NOT_H)) & position[EN_PASSANT] != EMPTY


@njit(**BORROWING)
def legal_key(position: Any, planes: Any) -> Any:
    """Return the hash key (engine.board.position.key) of packed planes (uint64[77]), uint64."""
    return key(position, U(en_passant_legal(position, planes)))


@njit(**BORROWING)
def has_no_moves(planes: Any) -> Any:
    """Return whether planes (uint64[77]) contain no legal move."""
    moves = EMPTY
    for index in range(MOVE_PLANES, MOVE_PLANES + MOVE_TYPES):
        moves |= planes[index]
    return moves == EMPTY


@njit(**BORROWING)
def count_moves(position: Any, planes: Any) -> Any:
    """Count the legal moves of planes, int64; each promotion counts as four moves."""
    moves = U(0)
    for index in range(MOVE_PLANES, MOVE_PLANES + MOVE_TYPES):
        moves += popcount(planes[index])
    seventh = position[PAWN] & (RANK_8 << U(8))
    for direction in (0, 1, 7):
        moves += U(3) * popcount(planes[MOVE_PLANES + direction] & seventh)
    return np.int64(moves)


@njit(**BORROWING)
def step_target(kind: Any, source: Any) -> Any:
    """Return the landing square (uint64) of a move of type `kind` from bit index `source`."""
    return (U(source) + _TURNS[kind]) & U(63)


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
            source = lowest(sources)
            sources &= sources - U(1)
            target = step_target(kind, source)
            first, last = (2, 6) if bit(source) & seventh != EMPTY else (0, 1)
            for promotion in range(first, last):
                child[:] = position
                push(child, source, target, promotion)
                leaves += perft(child, depth - 1)
    return leaves
