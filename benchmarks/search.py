"""Benchmark tree search with a trivial evaluator, and self-play with a small network.

Axes: G games.
"""

import time
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from statistics import median
from typing import Any

import chess
import numpy as np

from benchmarks import one_core
from engine.board.position import from_board
from engine.evaluation.evaluator import Evaluator, uniform
from engine.progress import Progress, Tick, silent
from engine.search import Search, SearchConfig
from engine.selfplay.generate import SelfPlayConfig, play_games

SIMULATIONS = 32
TREE_GAMES = 256
GAME_PLIES = 80
"""Half-moves after which a game is replaced by a new one."""
WARM_UP_MOVES = 10
"""Moves before timing starts, to compile, touch memory and desynchronize the games."""
SELFPLAY_GAMES = 128
"""Games played at once, which is the batch size."""
SELFPLAY_PLIES = 40
"""Half-moves after which a self-play game is stopped, so that the batch stays full."""


def tree_rate(
    moves: int,
    games: int,
    evaluate: Evaluator = uniform,
    clock: Callable[[], float] = time.process_time,
) -> float:
    """Return simulations per second of a clock, by default of the CPU, including tree reuse.

    Games are searched in parallel; a game that ends or is too long is replaced.
    """
    # the uniform evaluator's values hardly differ; c_stdev=0 gives trees as broad as OpenSpiel's
    config = SearchConfig(simulations=SIMULATIONS, c_stdev=0.0)
    search, numbers = Search(evaluate, config, games=games, seed=1), count()
    start, plies_G = from_board(chess.Board()), np.arange(games) % GAME_PLIES
    for slot in range(games):
        search.start(slot, start, game=next(numbers))
    for move in range(WARM_UP_MOVES + moves):
        if move == WARM_UP_MOVES:
            before, began = search.simulations, clock()
        search.run()
        labels_G, promotions_G = search.choose(temperature=1.0)
        plies_G += 1
        for slot, (label, promotion) in enumerate(zip(labels_G, promotions_G, strict=True)):
            if label < 0 or plies_G[slot] >= GAME_PLIES:
                search.start(slot, start, game=next(numbers))
                plies_G[slot] = 0
            else:
                search.play(slot, int(label), int(promotion))
    return (search.simulations - before) / (clock() - began)


def selfplay_rate(games: int, plies: int) -> float:
    """Play games with a small untrained network on one thread.

    Return moves per CPU-second, including recording.
    """
    import torch

    from model.inference.evaluator import NetworkEvaluator
    from model.network.network import build
    from model.network.presets import preset

    torch.set_num_threads(1)
    row = replace(preset("fianchetto-xs"), name="fianchetto-2x32", width=32, blocks=2)
    evaluator = NetworkEvaluator(build(row, seed=0), device="cpu", amp="off")
    search = SearchConfig(simulations=SIMULATIONS, dirichlet_fraction=0.25)
    for _ in play_games(evaluator, search, SelfPlayConfig(width=2, most_plies=2), games=2):
        pass  # compiles
    config, began = SelfPlayConfig(width=games, most_plies=plies), time.process_time()
    moves = sum(len(game.labels) for game in play_games(evaluator, search, config, games=games))
    return moves / (time.process_time() - began)


def measure(
    progress: Progress = silent, *, moves: int = 100, games: int = SELFPLAY_GAMES, rounds: int = 3
) -> dict[str, Any]:
    """Measure tree search, and self-play with a 2 x 32 network, on one core."""
    with one_core():
        rate = median(tree_rate(moves, TREE_GAMES) for _ in range(rounds))
        progress(Tick(1, 2, "stages"))
        played = median(selfplay_rate(games, SELFPLAY_PLIES) for _ in range(rounds))
    progress(Tick(2, 2, "stages"))
    return {
        "simulations": SIMULATIONS,
        "games": TREE_GAMES,
        "simulations_per_cpu_second": round(rate),
        "selfplay_moves_per_cpu_second": round(played, 1),
    }
