"""Define the 77 planes and the 4096 labels, pinned by a version and a hash.

planes    meaning (mover's view)
0..11     the mover's and the opponent's pawns, knights, bishops, rooks, queens, kings: P p N n ...
12        all ones if Black is to move, zeros if White is
13..76    plane 13 + t: from-squares of the legal moves of type t

type t    step
0..55     (distance - 1) * 8 + direction: distances 1..7, directions N NE E SE S SW W NW
56..63    knight steps (file, rank): (1,2) (2,1) (2,-1) (1,-2) (-1,-2) (-2,-1) (-2,1) (-1,2)

The label of a move is t * 64 + k, where k is the bit of its from-square. The move is legal exactly
if bit k of plane 13 + t is set. Castling is the king's two-square move. A promotion has the label
of its pawn move; the piece is stored separately.

Stability: every manifest and checkpoint stores ENCODING_VERSION and `moves_hash()`. Any change
needs a new version. The move types are ChessMarro's; the mover's view and the bit order are this
project's.

Axes: B rows, P planes, K squares.
"""

import hashlib
from collections.abc import Sequence
from functools import cache

import chess
import numpy as np
from numpy.typing import NDArray

from engine.board.bitboard import DIRECTIONS, KNIGHT_STEPS
from engine.board.movegen import MOVE_PLANES, MOVE_TYPES, legal_planes
from engine.board.position import KING, MAX_MOVES, from_board
from engine.errors import UserError

ENCODING_VERSION = 1

PIECE_PLANES = 12
TURN_PLANE = 12
PLANES = MOVE_PLANES + MOVE_TYPES
LABELS = MOVE_TYPES * 64
PLANE_BYTES = PLANES * 8
assert (MOVE_PLANES, PLANES, LABELS, PLANE_BYTES) == (13, 77, 4096, 616)

NO_MOVE_TYPE = 255
"""Entry of `type_table` for two squares that no queen or knight move connects."""


class PlanesError(UserError):
    """Planes that have a wrong shape or do not represent a position."""


class LabelError(UserError):
    """A label that is not a legal move, or a move that has no label."""


@cache
def steps() -> tuple[tuple[int, int], ...]:
    """Return the (file, rank) step of each of the 64 move types, in the mover's view."""
    slides = [
        (file * distance, rank * distance) for distance in range(1, 8) for file, rank in DIRECTIONS
    ]
    return (*slides, *KNIGHT_STEPS)


@cache
def target_table() -> NDArray[np.int8]:
    """Return the to-square of each label, int8[4096]; -1 if the move leaves the board."""
    table = np.full(LABELS, -1, dtype=np.int8)
    for kind, (file, rank) in enumerate(steps()):
        for square in range(64):
            row, col = square // 8 - rank, square % 8 + file
            if 0 <= row < 8 and 0 <= col < 8:
                table[kind * 64 + square] = 8 * row + col
    table.setflags(write=False)
    return table


@cache
def type_table() -> NDArray[np.uint8]:
    """Return the move type for each from- and to-square, uint8[64, 64]; NO_MOVE_TYPE for none."""
    table = np.full((64, 64), NO_MOVE_TYPE, dtype=np.uint8)
    for label, target in enumerate(target_table()):
        if target >= 0:
            table[label % 64, target] = label // 64
    table.setflags(write=False)
    return table


@cache
def moves_hash() -> str:
    """Return a hash of the plane order, bit order and move types, 16 hex digits."""
    order = ",".join(f"{side}{piece}" for piece in "PNBRQK" for side in ("own ", "opponent's "))
    text = f"{order};turn;bit=row*8+col;{steps()};{target_table().tolist()}"
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def label_from_move(move: chess.Move, turn: chess.Color) -> int:
    """Return the label (0..4095) of a move by the side `turn`; raise LabelError if it has none."""
    flip = 56 if turn == chess.WHITE else 0
    source, target = move.from_square ^ flip, move.to_square ^ flip
    kind = int(type_table()[source, target])
    if kind == NO_MOVE_TYPE:
        raise LabelError(f"{move.uci()} is not a move of standard chess")
    return kind * 64 + source


def move_from_label(label: int, promotion: int, turn: chess.Color) -> chess.Move:
    """Return the side's move for a label and promotion (piece type or 0), or raise LabelError."""
    target = int(target_table()[label]) if 0 <= label < LABELS else -1
    if target < 0:
        raise LabelError(f"label {label} is not a move: it leaves the board")
    flip = 56 if turn == chess.WHITE else 0
    return chess.Move(label % 64 ^ flip, target ^ flip, promotion or None)


def check_planes(planes_BP: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return planes as contiguous uint64[B, 77]; raise PlanesError if one cannot be a position.

    Checks the shape and the numbers of kings and moves. Compiled code does not check bounds, so
    call this first for planes from files.
    """
    if planes_BP.ndim != 2 or planes_BP.shape[1] != PLANES:
        raise PlanesError(f"planes must be uint64[B, {PLANES}], got shape {list(planes_BP.shape)}")
    planes_BP = np.ascontiguousarray(planes_BP, dtype=np.uint64)
    moves_B = np.bitwise_count(planes_BP[:, MOVE_PLANES:]).sum(axis=1, dtype=np.int64)
    kings_B2 = np.bitwise_count(planes_BP[:, KING : KING + 2])
    wrong_B = (moves_B > MAX_MOVES) | (kings_B2 != 1).any(axis=1)
    if wrong_B.any():
        raise PlanesError(
            f"row {wrong_B.argmax()} is not a position: each side must have one king, and the "
            f"side to move at most {MAX_MOVES} legal moves"
        )
    return planes_BP


def planes_of(boards: Sequence[chess.Board]) -> NDArray[np.uint64]:
    """Return the planes of python-chess boards, uint64[B, 77]."""
    planes_BP = np.zeros((len(boards), PLANES), dtype=np.uint64)
    for board, planes_P in zip(boards, planes_BP, strict=True):
        legal_planes(from_board(board), planes_P)
    return planes_BP


def unpack(planes_BP: NDArray[np.uint64]) -> NDArray[np.uint8]:
    """Unpack planes uint64[B, 77] to zeros and ones, uint8[B, 77, 8, 8]."""
    bits = np.unpackbits(
        np.ascontiguousarray(planes_BP, dtype="<u8").view(np.uint8), axis=-1, bitorder="little"
    )
    return bits.reshape(*planes_BP.shape, 8, 8)


def legal_mask(planes_BP: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """Return the mask of legal labels, bool[B, 4096], from planes uint64[B, 77]."""
    return unpack(planes_BP[:, MOVE_PLANES:]).reshape(len(planes_BP), LABELS).astype(np.bool_)
