"""Games between hand-written players, compiled and in integer arithmetic: a seed gives the same games on every machine.

A player scores the legal moves (engine/evaluation/handwritten.py), and plays a move with probability proportional to
exp(score / temperature); stronger players also look one ply ahead. The exponentials come from a table made of integer
products, so that rounding cannot differ between processors. Time is simulated in whole seconds.
"""

from typing import Any

import numpy as np
from numba import njit

from engine.board.bitboard import EMPTY, U
from engine.board.movegen import MOVE_PLANES, TYPES, en_passant_legal, legal_planes, step_target
from engine.board.position import MAX_MOVES, PAWN, key, push
from engine.board.rng import draw
from engine.board.rules import FIFTY, GOES_ON, REPETITION, ending_of_position, insufficient
from engine.evaluation.handwritten import WEIGHTS, score_moves
from engine.evaluation.static_evaluation import static_evaluation
from engine.evaluation.static_exchange import MAX_EXCHANGE

RESIGNED, FLAGGED, AGREED = range(FIFTY + 1, FIFTY + 4)
"""Endings other than by the rules: the side to move has resigned or lost on time, or a draw was agreed."""
MAX_PLIES = 300
"""Length at which the players agree to a draw."""

_STEPS = 64
_REACH = 16 * _STEPS


def _decay() -> np.ndarray[tuple[int, ...], np.dtype[np.uint64]]:
    """Return 2**30 * exp(-i / 64) for i in 0..1023 by integer products, uint64[1024]."""
    table, value = [], 1 << 62
    for _ in range(_REACH):
        table.append(value >> 32)
        value = value * 4_228_380_000 >> 32  # 2**32 * exp(-1 / 64)
    return np.array(table, dtype=np.uint64)


_DECAY = _decay()


@njit(cache=True, nogil=True)
def _seen(keys: Any, ply: Any, wanted: Any) -> Any:
    """Return how often `wanted` is among keys[:ply]."""
    times = 0
    for index in range(ply):
        if keys[index] == wanted:
            times += 1
    return times


@njit(cache=True, nogil=True)
def _look_ahead(position: Any, ply: Any, count: Any, share: Any, moves: Any, keys: Any, work: Any) -> None:
    """Mix `share` percent of the static evaluation after each move into its score; repetitions are worth 0."""
    labels, scores = moves
    gains, planes = work
    child = np.empty_like(position)
    for index in range(count):
        kind, source = labels[index] >> 6, U(labels[index] & 63)
        child[:] = position
        push(child, source, step_target(kind, source), 0)
        legal_planes(child, planes)
        value = -static_evaluation(planes, gains)
        if insufficient(child) or _seen(keys, ply + 1, key(child, en_passant_legal(child, planes))) >= 1:
            value = np.int64(0)
        scores[index] = (scores[index] * (100 - share) + value * share) // 100


@njit(cache=True, nogil=True)
def _choose(scores: Any, count: Any, temperature: Any, state: Any) -> Any:
    """Draw the index of a move, each with probability proportional to exp(score / temperature)."""
    best = scores[0]
    for index in range(1, count):
        best = max(best, scores[index])
    total = np.int64(0)
    for index in range(count):
        fall = min((best - scores[index]) * _STEPS // temperature, np.int64(_REACH - 1))
        scores[index] = np.int64(_DECAY[fall])
        total += scores[index]
    left = draw(state, total)
    for index in range(count):
        left -= scores[index]
        if left < 0:
            return index
    return count - 1


@njit(cache=True, nogil=True)
def _think(state: Any, ply: Any, base: Any, remaining: Any, choices: Any) -> Any:
    """Return the seconds spent on a move: mostly few, more with several moves to choose from, fewer when time is short."""
    if ply < 2:
        return np.int64(0)  # clocks start after each side's first move
    percent = draw(state, 100) * draw(state, 100) // 100 * (2 if choices > 4 else 1)
    if draw(state, 20) == 0:
        percent *= 4
    spent = base * percent // (1500 if ply < 16 else 2200)
    hurried = remaining // 12 + draw(state, 2)
    return min(spent, hurried)


@njit(cache=True, nogil=True)
def _gives_up(state: Any, ply: Any, value: Any, resigns: Any) -> Any:
    """Return RESIGNED or AGREED if the player to move ends the game, else GOES_ON."""
    if ply > 24 and value < -1000 and draw(state, 100) < resigns:
        return RESIGNED
    if ply > 90 and -30 < value < 30 and draw(state, 100) < 6:
        return AGREED
    return GOES_ON


@njit(cache=True, nogil=True)
def play(position: Any, state: Any, players: Any, base: Any, increment: Any, moves: Any) -> Any:
    """Play a game from `position`, which is changed to the last one; return (plies, ending).

    `players` int64[2, 3] (White, Black): temperature in centipawns per nat, percent of the static evaluation after the move,
    percent of resigning when lost. `moves` int64[MAX_PLIES, 3] receives label, promotion and the mover's seconds left.
    `state` uint64[1] is the state of the random numbers.
    """
    labels, scores = np.empty(MAX_MOVES, dtype=np.int64), np.empty(MAX_MOVES, dtype=np.int64)
    gains = np.empty(MAX_EXCHANGE, dtype=np.int64)
    planes, scratch = np.empty(MOVE_PLANES + TYPES, dtype=np.uint64), np.empty(MOVE_PLANES + TYPES, dtype=np.uint64)
    keys = np.empty(MAX_PLIES + 1, dtype=np.uint64)
    clocks = np.full(2, base, dtype=np.int64)
    for ply in range(MAX_PLIES):
        side = ply & 1
        checkers = legal_planes(position, planes)
        keys[ply] = key(position, en_passant_legal(position, planes))
        count = score_moves(planes, WEIGHTS, labels, scores, (gains, scratch))
        ending = ending_of_position(position, planes, checkers)
        if ending == GOES_ON and _seen(keys, ply, keys[ply]) >= 2:
            ending = np.int64(REPETITION)
        if ending < 0:
            ending = _gives_up(state, ply, static_evaluation(planes, gains), players[side, 2])
        if ending >= 0:
            return ply, ending
        if players[side, 1] > 0:
            _look_ahead(position, ply, count, players[side, 1], (labels, scores), keys, (gains, scratch))
        index = _choose(scores, count, players[side, 0], state)
        spent = _think(state, ply, base, clocks[side], count)
        if ply >= 2 and spent >= clocks[side]:
            return ply, FLAGGED
        clocks[side] += (increment if ply >= 2 else 0) - spent
        kind, source = labels[index] >> 6, U(labels[index] & 63)
        target = step_target(kind, source)
        promotion = 0
        if position[PAWN] & (U(1) << source) != EMPTY and target < U(8):
            promotion = 4 if draw(state, 16) == 0 else 5
        moves[ply, 0], moves[ply, 1], moves[ply, 2] = labels[index], promotion, clocks[side]
        push(position, source, target, promotion)
    return MAX_PLIES, AGREED
