"""Self-play with a small network, beside OpenSpiel's AlphaZero with a network of the same size."""

import time
from statistics import median
from typing import Any

from engine.progress import Progress, Tick, silent
from engine.search import SearchConfig
from engine.selfplay.generate import SelfPlayConfig, play_games
from pipeline.bench.cores import one_core
from pipeline.bench.open_spiel import alphazero_rate
from pipeline.bench.search import SIMULATIONS, network_evaluator

WIDTH, BLOCKS = 32, 2
"""Channels and residual blocks of both networks."""
PLIES = 40
"""Length at which games are stopped, so that all are in progress all the time."""


def moves_rate(games: int, plies: int) -> float:
    """Play games from the start and return moves per CPU-second, recording included."""
    search = SearchConfig(simulations=SIMULATIONS, dirichlet_fraction=0.25)
    config = SelfPlayConfig(width=games, most_plies=plies)
    evaluator = network_evaluator(WIDTH, BLOCKS)
    for _ in play_games(evaluator, search, SelfPlayConfig(width=2, most_plies=2), games=2):
        pass  # compiles
    began = time.process_time()
    moves = sum(len(game.labels) for game in play_games(evaluator, search, config, games=games))
    return moves / (time.process_time() - began)


def measure(
    progress: Progress = silent, *, games: int = 128, plies: int = PLIES, rounds: int = 3, seconds: float = 20.0
) -> dict[str, Any]:
    """Measure both on one core, OpenSpiel's between ours."""
    with one_core():
        rates = [moves_rate(games, plies)]
        progress(Tick(1, rounds + 1, "stages"))
        beside = alphazero_rate(SIMULATIONS, WIDTH, BLOCKS, seconds)
        for number in range(1, rounds):
            progress(Tick(number + 1, rounds + 1, "stages"))
            rates.append(moves_rate(games, plies))
    progress(Tick(rounds + 1, rounds + 1, "stages"))
    rate = median(rates)
    result = {
        "simulations": SIMULATIONS,
        "games": games,
        "plies": plies,
        "network": f"{BLOCKS} x {WIDTH}",
        "moves_per_cpu_second": round(rate, 1),
        **beside,
    }
    if "open_spiel_moves_per_cpu_second" in beside:
        result["ratio_open_spiel"] = round(rate / beside["open_spiel_moves_per_cpu_second"], 1)
    return result
