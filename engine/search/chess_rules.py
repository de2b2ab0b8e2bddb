"""Apply the rules of chess in the search: moves, endings, repetitions, mates in one.

Axes: D depth of a path, M moves.
"""

from typing import Any

import chess
import numpy as np
from numba import njit
from numpy.typing import NDArray

from engine.board.bitboard import EMPTY, RANK_8, U, bit, lowest_square
from engine.board.movegen import (
    MOVE_PLANES,
    MOVE_TYPES,
    has_no_legal_move,
    legal_planes,
    position_key,
    step_target,
)
from engine.board.position import COUNTERS, HALFMOVE_MASK, PAWN, Position, from_board, push
from engine.board.rules import FIFTY_MOVES_PLIES, ONGOING, REPETITION, find_ending
from engine.encoding.planes import LABELS, PLANES
from engine.search.tree import MAX_HISTORY, NO_NODE, TWOFOLD_REPETITION, UNKNOWN, WON, Forest, Int

assert MAX_HISTORY >= FIFTY_MOVES_PLIES


@njit(cache=True, nogil=True)
def play(position: Position, label: Int, promotion: Int) -> None:
    """Play the move with a label (0..4095) and promotion piece on a position, in place."""
    kind, source = label >> 6, U(label & 63)
    push(position, source, step_target(kind, source), promotion)


@njit(cache=True, nogil=True)
def list_moves(planes: NDArray[np.uint64], moves: Any) -> None:
    """Write the legal moves of `planes` (uint64[77]) to `moves` (EDGE_DTYPE[M]) as new edges."""
    seventh = planes[PAWN] & (RANK_8 << U(8))
    count = np.int64(0)
    for kind in range(MOVE_TYPES):
        sources = planes[MOVE_PLANES + kind]
        while sources != EMPTY:
            source = lowest_square(sources)
            sources &= sources - U(1)
            promotes = bit(source) & seventh != EMPTY
            for piece in range(4 if promotes else 1):
                move = moves[count]
                move.label = kind * 64 + np.int64(source)
                move.promotion = chess.QUEEN - piece if promotes else 0
                move.child, move.proof = NO_NODE, UNKNOWN
                move.value_sum = move.bias = 0.0
                move.visits = move.in_flight = 0
                count += 1


@njit(cache=True, nogil=True)
def examine(
    forest: Forest, slot: Int, position: Position, path: Any, planes: NDArray[np.uint64]
) -> Any:
    """Write a position's planes (uint64[77]); return its ending (or ONGOING) and its key.

    `path` (int32[D]) holds the nodes from the root to the position's parent.
    """
    checkers = legal_planes(position, planes)
    key = position_key(position, planes)
    ending = find_ending(position, planes, checkers)
    reversible = np.int64(position[COUNTERS] & HALFMOVE_MASK)
    if ending == ONGOING and reversible >= 4:
        ending = _find_repetition(forest, slot, key, path, reversible)
    return ending, key


@njit(cache=True, nogil=True)
def _find_repetition(forest: Forest, slot: Int, key: Any, path: Any, reversible: Int) -> Any:
    """Return REPETITION (third occurrence), TWOFOLD_REPETITION (second on the path) or ONGOING."""
    on_path, depth = np.int64(0), len(path)
    for index in range(depth - 2, max(np.int64(-1), depth - 1 - reversible), -2):
        if forest.nodes[slot, path[index]].key == key:
            on_path += 1
    if reversible <= depth and on_path == 0:
        return ONGOING  # no position before the root can recur
    if on_path + count_in_history(forest, slot, key) >= 2:
        return REPETITION
    return TWOFOLD_REPETITION if on_path > 0 else ONGOING


@njit(cache=True, nogil=True)
def count_in_history(forest: Forest, slot: Int, key: Any) -> Any:
    """Count the occurrences of a key in the game before the root, int64."""
    times = np.int64(0)
    for index in range(forest.slots[slot].history_length):
        if forest.history[slot, index] == key:
            times += 1
    return times


@njit(cache=True, nogil=True)
def mark_mates_in_one(forest: Forest, slot: Int, planes: NDArray[np.uint64]) -> Any:
    """Mark the root's mating moves as won, and the root too; return whether there are any."""
    position = np.empty_like(forest.roots[slot])
    root, has_mate = forest.nodes[slot, 0], False
    for edge in range(root.first, root.first + root.count):
        move = forest.edges[slot, edge]
        position[:] = forest.roots[slot]
        play(position, np.int64(move.label), np.int64(move.promotion))
        if legal_planes(position, planes) > 0 and has_no_legal_move(planes):
            move.proof = WON
            has_mate = True
    if has_mate:
        root.proof, root.distance = WON, 1
    return has_mate


def is_legal(position: Position, label: int, promotion: int) -> bool:
    """Return whether a label and promotion (python-chess piece type or 0) are a legal move."""
    if not 0 <= label < LABELS:
        return False
    planes = np.empty(PLANES, dtype=np.uint64)
    legal_planes(position, planes)
    kind, source = divmod(label, 64)
    promotes = 8 <= source < 16 and int(position[PAWN]) >> source & 1
    pieces = range(chess.KNIGHT, chess.KING) if promotes else (0,)
    return bool(int(planes[MOVE_PLANES + kind]) >> source & 1) and promotion in pieces


def position_and_history(board: chess.Board) -> tuple[Position, list[int]]:
    """Return a board's position, and the keys of the positions before it, for `Search.start`."""
    back, planes = board.copy(), np.empty(PLANES, dtype=np.uint64)
    keys: list[int] = []
    while back.move_stack and len(keys) < board.halfmove_clock:
        back.pop()
        position = from_board(back)
        legal_planes(position, planes)
        keys.append(int(position_key(position, planes)))
    return from_board(board), keys[::-1]
