"""Move features: gains, risks and threats of each legal move, as inputs of a network.

A network would have to learn attacks, but computing them is cheap. The networks of AlphaGo had
similar inputs: what each move captures and endangers (Silver et al. 2016, doi:10.1038/nature16961,
extended data table 2). Exchanges are those of engine/evaluation/static_exchange.py, which ignores
pins and checks.

The first seven features are amounts in tens of centipawns, at most 255. Unless noted, exchanges are
on the board after the move.

takes            value of the captured piece, and the gain of a promotion (to a queen)
risks            the opponent's gain by an exchange on the move's to-square
leaves           the opponent's best gain by an exchange on any other square
leaves_next      its second best, which remains if the mover answers the best
threatens        the mover's best gain by an exchange, if it could move again
threatens_next   its second best, which a fork would win
stands           the opponent's best gain if the mover passed; equal for all moves of a row
check            1 for check, 2 for mate, else 0
target           the move's to-square, as a bit index in the mover's view

Axes: B rows, M legal moves of all rows (concatenated), F features.
"""

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from engine.board.bitboard import EMPTY, RANK_8, U, bit, lowest_square
from engine.board.movegen import (
    MOVE_PLANES,
    MOVE_TYPES,
    attacked_by,
    has_no_legal_move,
    legal_planes,
    pawn_attacks_down,
    pawn_attacks_up,
    step_target,
)
from engine.board.position import (
    EN_PASSANT,
    KING,
    MOVER,
    OPPONENT,
    PAWN,
    QUEEN,
    WORDS,
    find_piece_word,
    occupied_squares,
    push,
)
from engine.encoding.planes import LABELS, check_planes
from engine.evaluation.static_evaluation import best_exchanges
from engine.evaluation.static_exchange import EXCHANGE_VALUES, MAX_EXCHANGE, see
from engine.kernels import NO_REFCOUNT

MOVE_FEATURES_VERSION = 1
"""Version of the features and of their encoding in model/network/encoder.py. A network that was
trained with another version cannot be loaded."""
MOVE_FEATURES = (
    *("takes", "risks", "leaves", "leaves_next", "threatens", "threatens_next"),
    *("stands", "check", "target"),
)
TAKES, RISKS, LEAVES, LEAVES_NEXT, THREATENS, THREATENS_NEXT, STANDS, CHECK, TARGET = range(9)
"""Columns of the features."""
CENTIPAWNS_PER_UNIT = 10
"""Centipawns per unit of an amount."""


@njit(**NO_REFCOUNT)
def _scale_amount(centipawns: Any) -> Any:
    return np.uint8(min(centipawns // CENTIPAWNS_PER_UNIT, 255))


@njit(**NO_REFCOUNT)
def _write_features(
    position: Any, child: Any, kind: Any, source: Any, planes: Any, gains: Any, features: Any
) -> None:
    """Write the features of a legal move; `child`, `planes` and `gains` are scratch memory."""
    target = step_target(kind, source)
    start, end = bit(source), bit(target)
    victim = find_piece_word(position, end, OPPONENT)
    pawn = position[PAWN] & start != EMPTY
    for word in range(WORDS):
        child[word] = position[word]
    if pawn and victim < 0 and kind % 8 != 0:  # a diagonal step to an empty square: en passant
        child[EN_PASSANT] = end
        victim = PAWN
    takes = EXCHANGE_VALUES[victim] if victim >= 0 else np.int64(0)
    if pawn and end & RANK_8 != EMPTY:
        takes += EXCHANGE_VALUES[QUEEN] - EXCHANGE_VALUES[PAWN]
    features[TARGET] = np.uint8(target)
    push(child, source, target, np.int64(0))
    # `child` has the opponent's view: the opponent is MOVER, the mover OPPONENT
    end = bit(target ^ U(56))
    occupied = occupied_squares(child)
    attacked = attacked_by(child, MOVER, pawn_attacks_up(child[PAWN]), occupied)
    attacks = attacked_by(child, OPPONENT, pawn_attacks_down(child[PAWN + 1]), occupied)
    risks = np.int64(0)
    if attacked & end != EMPTY:
        moved = EXCHANGE_VALUES[find_piece_word(child, end, OPPONENT)]
        risks = see(child, target ^ U(56), moved, MOVER, occupied, gains)
    leaves, leaves_next = best_exchanges(child, MOVER, attacked & ~end, occupied, gains)
    threatens, threatens_next = best_exchanges(child, OPPONENT, attacks, occupied, gains)
    features[TAKES], features[RISKS] = _scale_amount(takes), _scale_amount(risks)
    features[LEAVES], features[LEAVES_NEXT] = _scale_amount(leaves), _scale_amount(leaves_next)
    features[THREATENS], features[THREATENS_NEXT] = (
        _scale_amount(threatens),
        _scale_amount(threatens_next),
    )
    features[CHECK] = 0
    if attacks & child[KING] != EMPTY:
        legal_planes(child, planes)
        features[CHECK] = 2 if has_no_legal_move(planes) else 1


@njit(**NO_REFCOUNT)
def _write_all_features(
    planes_BP: Any,
    position: Any,
    child: Any,
    scratch: Any,
    gains: Any,
    moves_M: Any,
    features_MF: Any,
) -> None:
    """Write the moves and features of all rows; `position` to `gains` are scratch memory."""
    count = 0
    for row in range(len(planes_BP)):
        for word in range(MOVE_PLANES):
            position[word] = planes_BP[row, word]
        occupied = occupied_squares(position)
        pawns = pawn_attacks_down(position[PAWN + 1])
        threats = attacked_by(position, OPPONENT, pawns, occupied)
        stands = _scale_amount(best_exchanges(position, OPPONENT, threats, occupied, gains)[0])
        for kind in range(MOVE_TYPES):
            sources = planes_BP[row, MOVE_PLANES + kind]
            while sources != EMPTY:
                source = lowest_square(sources)
                sources &= sources - U(1)
                moves_M[count] = row * LABELS + kind * 64 + np.int64(source)
                _write_features(position, child, kind, source, scratch, gains, features_MF[count])
                features_MF[count, STANDS] = stands
                count += 1


def legal_move_features(planes_BP: NDArray[np.uint64]) -> dict[str, NDArray[Any]]:
    """Return the `moves` of all rows, int64[M], and their `move_features`, uint8[M, F].

    A move is row * 4096 + label, and moves are ascending. Raises PlanesError for invalid planes.
    """
    planes_BP = check_planes(planes_BP)
    count = int(np.bitwise_count(planes_BP[:, MOVE_PLANES:]).sum(dtype=np.int64))
    moves_M = np.empty(count, dtype=np.int64)
    features_MF = np.empty((len(moves_M), len(MOVE_FEATURES)), dtype=np.uint8)
    position, child = np.zeros((2, WORDS), dtype=np.uint64)
    scratch = np.zeros(MOVE_PLANES + MOVE_TYPES, dtype=np.uint64)
    gains = np.zeros(MAX_EXCHANGE, dtype=np.int64)
    _write_all_features(planes_BP, position, child, scratch, gains, moves_M, features_MF)
    return {"moves": moves_M, "move_features": features_MF}
