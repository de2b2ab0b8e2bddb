"""Benchmark tree search with a trivial evaluator.

Axes: G games.
"""

import time
from collections.abc import Callable
from itertools import count
from statistics import median
from typing import Any

import chess
import numpy as np

from benchmarks import one_core
from engine.board.position import from_board
from engine.evaluation.evaluator import Evaluator, uniform
from engine.search import Search, SearchConfig

SIMULATIONS = 32
"""Simulations per move."""
PARALLEL_GAMES = 256
MAX_GAME_PLIES = 80
"""Half-moves after which a game is replaced by a new one."""
WARM_UP_MOVES = 10
"""Moves before timing starts, to compile, touch memory and desynchronize the games."""


def measure_search(
    moves: int,
    games: int,
    evaluate: Evaluator = uniform,
    clock: Callable[[], float] = time.process_time,
) -> float:
    """Search `moves` moves of several games in parallel, and return simulations per second.

    Seconds are those of `clock`, by default of the CPU, and include the reuse of trees. A game that
    ends or is too long is replaced.
    """
    # the uniform evaluator's values hardly differ; c_stdev=0 gives trees as broad as OpenSpiel's
    config = SearchConfig(simulations=SIMULATIONS, c_stdev=0.0)
    search, numbers = Search(evaluate, config, games=games, seed=1), count()
    start, plies_G = from_board(chess.Board()), np.arange(games) % MAX_GAME_PLIES
    for slot in range(games):
        search.start(slot, start, game=next(numbers))
    for move in range(WARM_UP_MOVES + moves):
        if move == WARM_UP_MOVES:
            before, began = search.simulations, clock()
        search.run()
        labels_G, promotions_G = search.choose(temperature=1.0)
        plies_G += 1
        for slot, (label, promotion) in enumerate(zip(labels_G, promotions_G, strict=True)):
            if label < 0 or plies_G[slot] >= MAX_GAME_PLIES:
                search.start(slot, start, game=next(numbers))
                plies_G[slot] = 0
            else:
                search.play(slot, int(label), int(promotion))
    return (search.simulations - before) / (clock() - began)


def measure(moves: int = 100, rounds: int = 3) -> dict[str, Any]:
    """Measure tree search on one core."""
    with one_core():
        rate = median(measure_search(moves, PARALLEL_GAMES) for _ in range(rounds))
    return {
        "simulations": SIMULATIONS,
        "games": PARALLEL_GAMES,
        "simulations_per_cpu_second": round(rate),
    }
