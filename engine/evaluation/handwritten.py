"""Hand-written evaluator: move priors and a value from classical chess knowledge.

The prior of a legal move depends on the change of piece-square values, the exchanges that it wins
or loses, threats, checks, mates, castling and promotion. The value is the static evaluation,
converted by a logistic curve.

Scores are integers in centipawns up to the last division, so they are the same on every machine.
Boards are unsigned 64-bit and scores int64; no operation mixes them.

Axes: B rows, P planes, A labels, M legal moves, W outcomes.
"""

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from engine.board.bitboard import EMPTY, RANK_8, U, bit, lowest_square
from engine.board.movegen import (
    CASTLE_EAST,
    CASTLE_WEST,
    MOVE_PLANES,
    MOVE_TYPES,
    attacked_by,
    count_moves,
    has_no_legal_move,
    legal_planes,
    pawn_attacks_down,
    step_target,
)
from engine.board.position import (
    EN_PASSANT,
    KING,
    MAX_MOVES,
    MOVER,
    OPPONENT,
    PAWN,
    QUEEN,
    ROOK,
    WORDS,
    find_piece_word,
    occupied_squares,
    push,
)
from engine.encoding.planes import LABELS, check_planes
from engine.evaluation.piece_squares import ENDGAME, FULL_PHASE, MIDDLEGAME
from engine.evaluation.static_evaluation import (
    MATE_VALUE,
    PIECE_WORDS,
    best_exchanges,
    game_phase,
    passed_pawns,
    piece_attacks,
    static_evaluation,
)
from engine.evaluation.static_exchange import EXCHANGE_VALUES, MAX_EXCHANGE, attackers

PRIOR_TEMPERATURE = 140.0
"""Centipawns of a move's score per nat of its logit, fitted to human moves (rapid, mean rating
1580)."""
VALUE_SCALE = 350.0
"""Centipawns per unit of the logistic curve, fitted to the results of the same games."""
EVEN_DRAW_SHARE = 0.08
"""Probability of a draw in an even position, fitted to the same results. At an expected score p, it
is multiplied by 4 * p * (1 - p)."""

# Terms of a move's score, in centipawns.
CAPTURE_BONUS = 80
CHECK_BONUS = 100
CASTLING_BONUS = 100
PASSED_PAWN_BONUS = 13
"""Times the number of ranks from the first rank to the square that a passed pawn moves to."""
RETREAT_PENALTY = 13
"""For a knight, bishop, rook or queen that moves back."""
THREAT_PERCENT = 8
"""Percentage of the largest gain that the moved piece threatens."""


@njit(cache=True, nogil=True)
def _is_mate(planes: Any, word: Any, source: Any, target: Any, scratch: Any) -> Any:
    """Return whether a move that gives check is mate; `scratch` is uint64[77]."""
    position = np.zeros(WORDS, dtype=np.uint64)
    position[: PIECE_WORDS + 1] = planes[: PIECE_WORDS + 1]
    is_diagonal = word == PAWN and (source ^ target) & U(7) != EMPTY
    if is_diagonal and find_piece_word(planes, bit(target), OPPONENT) < 0:
        position[EN_PASSANT] = bit(target)
    push(position, source, target, np.int64(0))
    legal_planes(position, scratch)
    return has_no_legal_move(scratch)


@njit(cache=True, nogil=True)
def _play_move(board: Any, word: Any, victim: Any, kind: Any, start: Any, end: Any) -> None:
    """Play a move between two bitboards of one bit; the view stays that of the mover."""
    board[word] ^= start | end
    if victim >= 0:
        captured = end
        if board[victim] & end == EMPTY:  # en passant
            captured = end << U(8)
        board[victim] ^= captured
    if word == PAWN and end & RANK_8 != EMPTY:
        board[PAWN] ^= end
        board[QUEEN] ^= end
    elif word == KING and kind == CASTLE_EAST:
        board[ROOK] ^= (end << U(1)) | (end >> U(1))
    elif word == KING and kind == CASTLE_WEST:
        board[ROOK] ^= (end >> U(2)) | (end << U(1))


@njit(cache=True, nogil=True)
def _score_move(planes: Any, move: Any, state: Any, work: Any) -> Any:
    """Return the score of a legal move, int64 centipawns; restores the board in `state`."""
    word, kind, source, target = move
    board, attacked, phase, passed = state
    gains, scratch = work
    start, end = bit(source), bit(target)
    victim = find_piece_word(board, end, OPPONENT)
    if word == PAWN and victim < 0 and (source ^ target) & U(7) != EMPTY:
        victim = PAWN + 1
    _play_move(board, word, victim, kind, start, end)
    own = theirs = EMPTY
    for index in range(0, PIECE_WORDS, 2):
        own |= board[index]
        theirs |= board[index + 1]
    occupied = own | theirs
    arrived = QUEEN if word == PAWN and end & RANK_8 != EMPTY else word

    middle = MIDDLEGAME[arrived >> 1, target] - MIDDLEGAME[word >> 1, source]
    endgame = ENDGAME[arrived >> 1, target] - ENDGAME[word >> 1, source]
    score = (middle * phase + endgame * (np.int64(FULL_PHASE) - phase)) // np.int64(FULL_PHASE)
    if victim >= 0:
        score += EXCHANGE_VALUES[victim] + CAPTURE_BONUS
    if word == KING and kind in (CASTLE_EAST, CASTLE_WEST):
        score += CASTLING_BONUS
    if start & passed != EMPTY:
        score += PASSED_PAWN_BONUS * (np.int64(7) - np.int64(target >> U(3)))
    if word != PAWN and word != KING and target >> U(3) > source >> U(3):
        score -= RETREAT_PENALTY
    # a piece that leaves an attacked square may open a line to others
    exposed = own if start & attacked != EMPTY else own & (attacked | end)
    best, second = best_exchanges(board, OPPONENT, exposed & ~board[KING], occupied, gains)
    score -= best + second // np.int64(4)
    if arrived != KING:
        victims = piece_attacks(arrived, target, occupied) & theirs
        if victims & ~board[KING + 1] != EMPTY:
            best, _ = best_exchanges(board, MOVER, victims, occupied, gains)
            score += best * THREAT_PERCENT // 100
    if attackers(board, lowest_square(board[KING + 1]), occupied) & own != EMPTY:
        score += CHECK_BONUS
        if _is_mate(planes, word, source, target, scratch):
            score += np.int64(MATE_VALUE)
    board[:] = planes[:PIECE_WORDS]
    return score


@njit(cache=True, nogil=True)
def score_moves(planes: Any, labels: Any, scores: Any, work: Any) -> Any:
    """Write the labels and scores (int64[MAX_MOVES]) of all legal moves; return their number.

    `planes` is uint64[77]. Moves are in ascending order of label. `work` is scratch memory:
    (int64[MAX_EXCHANGE], uint64[77]).
    """
    assert count_moves(planes, planes) <= min(len(labels), len(scores))
    board = planes[:PIECE_WORDS].copy()
    occupied = occupied_squares(board)
    phase = game_phase(board)
    attacked = attacked_by(board, OPPONENT, pawn_attacks_down(board[PAWN + 1]), occupied)
    state = (board, attacked, phase, passed_pawns(board[PAWN], board[PAWN + 1]))
    count = 0
    for kind in range(MOVE_TYPES):
        sources = planes[MOVE_PLANES + kind]
        while sources != EMPTY:
            source = lowest_square(sources)
            sources &= sources - U(1)
            word = find_piece_word(board, bit(source), MOVER)
            labels[count] = np.int64(kind) * np.int64(64) + np.int64(source)
            move = (word, kind, source, step_target(kind, source))
            scores[count] = _score_move(planes, move, state, work)
            count += 1
    return count


@njit(cache=True, nogil=True)
def _score_rows(planes_BP: Any, logits_BA: Any, values_B: Any, temperature: Any) -> None:
    """Fill logits float32[B, 4096] (legal labels only) and values int64[B], centipawns."""
    labels_M = np.empty(MAX_MOVES, dtype=np.int64)
    scores_M = np.empty(MAX_MOVES, dtype=np.int64)
    gains = np.empty(MAX_EXCHANGE, dtype=np.int64)
    work = (gains, np.empty(MOVE_PLANES + MOVE_TYPES, dtype=np.uint64))
    for row in range(len(planes_BP)):
        planes = planes_BP[row]
        count = score_moves(planes, labels_M, scores_M, work)
        for index in range(count):
            logits_BA[row, labels_M[index]] = np.float32(scores_M[index]) / temperature
        values_B[row] = static_evaluation(planes, gains)


def evaluate(planes_BP: NDArray[np.uint64]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Evaluate positions by hand-written rules; this is an `Evaluator`.

    Returns logits float32[B, 4096], which are -inf for illegal labels, and wdl float32[B, 3]. The
    loss of a mated side and the draw of a stalemate have probability 1. Raises PlanesError for a
    row that is not a position.
    """
    planes_BP = check_planes(planes_BP)
    logits_BA = np.full((len(planes_BP), LABELS), -np.inf, dtype=np.float32)
    values_B = np.empty(len(planes_BP), dtype=np.int64)
    _score_rows(planes_BP, logits_BA, values_B, np.float32(PRIOR_TEMPERATURE))
    over_B = np.logical_not(planes_BP[:, MOVE_PLANES:].any(axis=1))
    return logits_BA, values_to_wdl(values_B, over_B)


def values_to_wdl(values_B: NDArray[np.int64], over_B: NDArray[np.bool_]) -> NDArray[np.float32]:
    """Convert centipawns to probabilities of win, draw and loss, float32[B, 3].

    In rows of `over_B`, the game is over: 0 is a draw, and -MATE_VALUE a loss.
    """
    expected_B = 1.0 / (1.0 + np.exp(-values_B / VALUE_SCALE))
    draw_B = 4.0 * EVEN_DRAW_SHARE * expected_B * (1.0 - expected_B)
    draw_B = np.where(over_B, (values_B == 0).astype(np.float64), draw_B)
    expected_B = np.where(over_B, draw_B / 2.0, expected_B)
    return np.stack(
        [expected_B - draw_B / 2.0, draw_B, 1.0 - expected_B - draw_B / 2.0], axis=1
    ).astype(np.float32)
