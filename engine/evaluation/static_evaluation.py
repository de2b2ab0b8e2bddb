"""Static evaluation: a position's value in centipawns without search.

The terms are piece-square tables (interpolated between middlegame and endgame), mobility, pressure
on the king and its shelter, pawn structure, the bishop pair, and hanging pieces. A side with a
large lead gets a bonus for driving a bare king towards mate. Each term scores the mover's pieces;
the opponent's are scored on the mirrored board.

Arithmetic is on integers, so results are the same on every machine. Boards are unsigned 64-bit and
scores int64; no operation mixes them. A *board* is words 0..11 of a position.
"""

from typing import Any

import numpy as np
from numba import njit

from engine.board.bitboard import (
    EMPTY,
    FILE_A,
    NOT_FILE_A,
    NOT_FILE_H,
    U,
    bit,
    flip,
    king_attacks,
    knight_attacks,
    lowest_square,
    popcount,
)
from engine.board.movegen import has_no_legal_move, pawn_attacks_down, pawn_attacks_up
from engine.board.position import (
    BISHOP,
    KING,
    KNIGHT,
    MOVER,
    OPPONENT,
    PAWN,
    QUEEN,
    ROOK,
    occupied_squares,
)
from engine.evaluation.piece_squares import ENDGAME, FULL_PHASE, MIDDLEGAME, PHASE_WEIGHTS
from engine.evaluation.static_exchange import (
    EXCHANGE_VALUES,
    attackers,
    diagonal_attacks,
    see,
    straight_attacks,
)
from engine.kernels import NO_REFCOUNT

PIECE_WORDS = 12
MATE_VALUE = 30_000
"""Value of mate, in centipawns."""


@njit(**NO_REFCOUNT, inline="always")
def _count_squares(board: Any) -> Any:
    return np.int64(popcount(board))


@njit(**NO_REFCOUNT, inline="always")
def piece_attacks(word: Any, square: Any, occupied: Any) -> Any:
    """Return the squares attacked by a mover's piece (not the king) on `square`, uint64."""
    if word == PAWN:
        return pawn_attacks_up(bit(square))
    if word == KNIGHT:
        return knight_attacks(bit(square))
    if word == BISHOP:
        return diagonal_attacks(square, occupied)
    if word == ROOK:
        return straight_attacks(square, occupied)
    return diagonal_attacks(square, occupied) | straight_attacks(square, occupied)


@njit(**NO_REFCOUNT)
def game_phase(board: Any) -> Any:
    """Return the game phase, int64: 24 with all pieces, 0 with pawns and kings only."""
    phase = np.int64(0)
    for word in range(PIECE_WORDS):
        phase += PHASE_WEIGHTS[word >> 1] * _count_squares(board[word])
    return min(phase, np.int64(FULL_PHASE))


@njit(**NO_REFCOUNT)
def mirror_boards(board: Any, out: Any) -> None:
    """Write the twelve piece bitboards of `board` to `out` in the opponent's view."""
    for word in range(0, PIECE_WORDS, 2):
        out[word] = flip(board[word + 1])
        out[word + 1] = flip(board[word])


@njit(**NO_REFCOUNT)
def passed_pawns(own: Any, theirs: Any) -> Any:
    """Return the mover's passed pawns, uint64."""
    down = theirs | (theirs << U(8))
    down |= down << U(16)
    down |= down << U(32)
    return own & ~((down << U(8)) | pawn_attacks_down(down))


@njit(**NO_REFCOUNT)
def _evaluate_pawns(board: Any, phase: Any) -> Any:
    """Score the mover's pawn structure and king shelter, int64 centipawns."""
    own = board[PAWN]
    score = np.int64(0)
    passed = passed_pawns(own, board[PAWN + 1])
    while passed != EMPTY:
        advance = np.int64(6) - np.int64(lowest_square(passed) >> U(3))
        score += advance * advance * (np.int64(36) - phase) // np.int64(12)
        passed &= passed - U(1)
    for file in range(8):
        line = FILE_A << U(file)
        here = _count_squares(own & line)
        if here:
            beside = ((line << U(1)) & NOT_FILE_A) | ((line >> U(1)) & NOT_FILE_H)
            score -= np.int64(10) * (here - np.int64(1))
            if own & beside == EMPTY:
                score -= np.int64(12)
    shield = (king_attacks(board[KING]) >> U(8)) | king_attacks(board[KING])
    return score + _count_squares(shield & own) * np.int64(6) * phase // np.int64(FULL_PHASE)


@njit(**NO_REFCOUNT)
def _evaluate_side(board: Any, occupied: Any, phase: Any) -> Any:
    """Return the score of the mover's pieces (int64 centipawns) and their attacks (uint64)."""
    own = EMPTY
    for word in range(0, PIECE_WORDS, 2):
        own |= board[word]
    guarded = pawn_attacks_down(board[PAWN + 1])
    zone = king_attacks(board[KING + 1]) | board[KING + 1]
    attacks = king_attacks(board[KING])
    middle, end, pressure, score = np.int64(0), np.int64(0), np.int64(0), np.int64(0)
    for word in range(0, PIECE_WORDS, 2):
        pieces = board[word]
        while pieces != EMPTY:
            square = lowest_square(pieces)
            pieces &= pieces - U(1)
            middle += MIDDLEGAME[word >> 1, square]
            end += ENDGAME[word >> 1, square]
            if word == KING:
                continue
            reach = piece_attacks(word, square, occupied)
            attacks |= reach
            if word == PAWN:
                continue
            weight = np.int64(1) if word == QUEEN else np.int64(3)
            score += weight * _count_squares(reach & ~own & ~guarded)
            pressure += np.int64(word) * _count_squares(reach & zone)
    if _count_squares(board[BISHOP]) >= 2:
        score += np.int64(30)
    score += pressure * phase // np.int64(FULL_PHASE)
    score += (middle * phase + end * (np.int64(FULL_PHASE) - phase)) // np.int64(FULL_PHASE)
    return score + _evaluate_pawns(board, phase), attacks


@njit(**NO_REFCOUNT)
def _mating_bonus(board: Any, attacks: Any) -> Any:
    """Return the bonus for driving a king without pieces to the edge, near the mover's, int64."""
    for word in range(KNIGHT + 1, KING, 2):
        if board[word] != EMPTY:
            return np.int64(0)
    theirs, mine = np.int64(lowest_square(board[KING + 1])), np.int64(lowest_square(board[KING]))
    row, col = theirs >> 3, theirs & 7
    edge = max(np.int64(3) - row, row - np.int64(4)) + max(np.int64(3) - col, col - np.int64(4))
    confined = _count_squares(king_attacks(board[KING + 1]) & attacks)
    closeness = np.int64(14) - abs(row - (mine >> 3)) - abs(col - (mine & 7))
    return np.int64(30) * edge + np.int64(12) * confined + np.int64(12) * closeness


@njit(**NO_REFCOUNT)
def _shrink_drawish_lead(board: Any, score: Any) -> Any:
    """Divide the score by 8 if the leading side has no pawns and too small a lead to win."""
    if board[PAWN] != EMPTY and board[PAWN + 1] != EMPTY:
        return score
    lead = np.int64(0)
    for word in range(KNIGHT, KING, 2):
        lead += EXCHANGE_VALUES[word] * (
            _count_squares(board[word]) - _count_squares(board[word + 1])
        )
    if (score > 0 and board[PAWN] == EMPTY and lead < 400) or (
        score < 0 and board[PAWN + 1] == EMPTY and lead > -400
    ):
        return score // np.int64(8)
    return score


@njit(**NO_REFCOUNT)
def best_exchanges(board: Any, side: Any, attacked: Any, occupied: Any, gains: Any) -> Any:
    """Return the best and second-best gain of `side` by exchanges on `attacked` squares, int64."""
    best = second = np.int64(0)
    for word in range(1 - side, KING, 2):
        victims = board[word] & attacked
        while victims != EMPTY:
            gain = see(board, lowest_square(victims), EXCHANGE_VALUES[word], side, occupied, gains)
            victims &= victims - U(1)
            if gain > best:
                best, second = gain, best
            elif gain > second:
                second = gain
    return best, second


@njit(cache=True, nogil=True)
def static_evaluation(planes: Any, gains: Any) -> Any:
    """Return the value for the mover, int64 centipawns; -MATE_VALUE if mated, 0 in stalemate.

    `planes` is uint64[77], `gains` scratch memory, int64[MAX_EXCHANGE].
    """
    occupied = occupied_squares(planes)
    mirrored = np.empty(PIECE_WORDS, dtype=np.uint64)
    mirror_boards(planes, mirrored)
    phase = game_phase(planes)
    mine, attacks = _evaluate_side(planes, occupied, phase)
    theirs, attacked = _evaluate_side(mirrored, flip(occupied), phase)
    attacked = flip(attacked)
    if has_no_legal_move(planes):
        return np.int64(-MATE_VALUE) if attacked & planes[KING] != EMPTY else np.int64(0)
    score = mine - theirs
    score += _mating_bonus(planes, attacks) if score > 300 else np.int64(0)
    score -= _mating_bonus(mirrored, flip(attacked)) if score < -300 else np.int64(0)
    if attacked & planes[KING] != EMPTY:  # in check, only captures of the checker count
        attacks &= attackers(planes, lowest_square(planes[KING]), occupied)
    won, _ = best_exchanges(planes, MOVER, attacks, occupied, gains)
    _, second = best_exchanges(planes, OPPONENT, attacked, occupied, gains)
    score += won - second // np.int64(2)  # the mover can save the most threatened piece
    return _shrink_drawish_lead(planes, score + np.int64(12))
