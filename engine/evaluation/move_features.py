"""Move features: gains, risks and threats of each legal move, as inputs of a network.

A network would have to learn attacks, but computing them is cheap. AlphaGo's first networks had
similar inputs: what each move captures and endangers (Silver et al. 2016, doi:10.1038/nature16961,
extended data table 2). Exchanges are those of `engine.evaluation.static_exchange`, which ignores
pins and checks.

feature          in tens of centipawns, 0 to 255, on the board after the move unless noted.
takes            value of the captured piece, and the gain of a promotion (to a queen).
risks            the opponent's gain by taking on the move's target square.
leaves           the opponent's best gain by an exchange on any other square.
leaves_next      the second best: the loss when the first is answered.
threatens        the mover's best gain by an exchange, if it could move again.
threatens_next   the second best: the gain of a fork.
stands           the opponent's best gain if the mover passed; equal for all moves of a row.
check            1 for check, 2 for mate, else 0.
target           the move's target square, as a bit index in the mover's view.

Axes: B rows, M legal moves of all rows (concatenated), F features.
"""

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from engine.board.bitboard import EMPTY, RANK_8, U, bit, lowest
from engine.board.movegen import (
    MOVE_PLANES,
    MOVE_TYPES,
    attacked_by,
    has_no_moves,
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
    occupied_squares,
    push,
    word_on,
)
from engine.encoding.planes import LABELS, check_planes
from engine.evaluation.static_evaluation import best_exchanges
from engine.evaluation.static_exchange import MAX_EXCHANGE, WORTH, see
from engine.kernels import BORROWING

FEATURES_VERSION = 1
"""Version of these features and of their encoding in `model.network.decoder`: a network with
another version cannot be loaded."""
FEATURES = (
    *("takes", "risks", "leaves", "leaves_next", "threatens", "threatens_next"),
    *("stands", "check", "target"),
)
TAKES, RISKS, LEAVES, LEAVES_NEXT, THREATENS, THREATENS_NEXT, STANDS, CHECK, TARGET = range(9)
CENTIPAWNS_PER_UNIT = 10
"""Centipawns per unit of a feature."""


@njit(**BORROWING)
def _amount(centipawns: Any) -> Any:
    return np.uint8(min(centipawns // CENTIPAWNS_PER_UNIT, 255))


@njit(**BORROWING)
def _write_features(
    position: Any, child: Any, kind: Any, source: Any, planes: Any, gains: Any, features: Any
) -> None:
    """Write the features of a legal move; `child`, `planes` and `gains` are scratch."""
    target = step_target(kind, source)
    start, end = bit(source), bit(target)
    taken = word_on(position, end, OPPONENT)
    pawn = position[PAWN] & start != EMPTY
    for word in range(WORDS):
        child[word] = position[word]
    if pawn and taken < 0 and kind % 8 != 0:  # a diagonal step to an empty square: en passant
        child[EN_PASSANT] = end
        taken = PAWN
    takes = WORTH[taken] if taken >= 0 else np.int64(0)
    if pawn and end & RANK_8 != EMPTY:
        takes += WORTH[QUEEN] - WORTH[PAWN]
    features[TARGET] = np.uint8(target)
    push(child, source, target, np.int64(0))
    # the board is in the opponent's view now: the opponent is MOVER, the mover OPPONENT
    end = bit(target ^ U(56))
    occupied = occupied_squares(child)
    answers = attacked_by(child, MOVER, pawn_attacks_up(child[PAWN]), occupied)
    attacks = attacked_by(child, OPPONENT, pawn_attacks_down(child[PAWN + 1]), occupied)
    risks = np.int64(0)
    if answers & end != EMPTY:
        moved = WORTH[word_on(child, end, OPPONENT)]
        risks = see(child, target ^ U(56), moved, MOVER, occupied, gains)
    leaves, leaves_next = best_exchanges(child, MOVER, answers & ~end, occupied, gains)
    threatens, threatens_next = best_exchanges(child, OPPONENT, attacks, occupied, gains)
    features[TAKES], features[RISKS] = _amount(takes), _amount(risks)
    features[LEAVES], features[LEAVES_NEXT] = _amount(leaves), _amount(leaves_next)
    features[THREATENS], features[THREATENS_NEXT] = _amount(threatens), _amount(threatens_next)
    features[CHECK] = 0
    if attacks & child[KING] != EMPTY:
        legal_planes(child, planes)
        features[CHECK] = 2 if has_no_moves(planes) else 1


@njit(**BORROWING)
def _fill(
    planes_BP: Any,
    position: Any,
    child: Any,
    answers: Any,
    gains: Any,
    moves_M: Any,
    features_MF: Any,
) -> None:
    """Write the moves and features of all rows; `position` to `gains` are scratch."""
    count = 0
    for row in range(len(planes_BP)):
        for word in range(MOVE_PLANES):
            position[word] = planes_BP[row, word]
        occupied = occupied_squares(position)
        pawns = pawn_attacks_down(position[PAWN + 1])
        threats = attacked_by(position, OPPONENT, pawns, occupied)
        stands = _amount(best_exchanges(position, OPPONENT, threats, occupied, gains)[0])
        for kind in range(MOVE_TYPES):
            sources = planes_BP[row, MOVE_PLANES + kind]
            while sources != EMPTY:
                source = lowest(sources)
                sources &= sources - U(1)
                moves_M[count] = row * LABELS + kind * 64 + np.int64(source)
                _write_features(position, child, kind, source, answers, gains, features_MF[count])
                features_MF[count, STANDS] = stands
                count += 1


def legal_move_features(planes_BP: NDArray[np.uint64]) -> dict[str, NDArray[Any]]:
    """Return the `moves` of all rows, int64[M], and their `move_features`, uint8[M, F].

    A move is row * 4096 + label, in ascending order. `planes_BP` is uint64[B, 77]. Raises
    PlanesError.
    """
    planes_BP = check_planes(planes_BP)
    count = int(np.bitwise_count(planes_BP[:, MOVE_PLANES:]).sum(dtype=np.int64))
    moves_M = np.empty(count, dtype=np.int64)
    features_MF = np.empty((len(moves_M), len(FEATURES)), dtype=np.uint8)
    position, child = np.zeros((2, WORDS), dtype=np.uint64)
    answers = np.zeros(MOVE_PLANES + MOVE_TYPES, dtype=np.uint64)
    gains = np.zeros(MAX_EXCHANGE, dtype=np.int64)
    _fill(planes_BP, position, child, answers, gains, moves_M, features_MF)
    return {"moves": moves_M, "move_features": features_MF}
