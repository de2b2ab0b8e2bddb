"""Search with an evaluator that costs nothing, and self-play with a small network.

Axes: G games.
"""

import time
from statistics import median
from typing import Any

import chess
import numpy as np

from benchmarks.machine import one_core
from engine.board.position import from_board
from engine.evaluation.evaluator import Evaluator, uniform
from engine.progress import Progress, Tick, silent
from engine.search import Search, SearchConfig
from engine.selfplay.generate import SelfPlayConfig, play_games

SIMULATIONS = 32
TREE_GAMES = 256
GAME_PLIES = 80
"""Half-moves after which a game is replaced by a new one."""
SELFPLAY_GAMES = 128
"""Games played at once, which is the batch size."""
SELFPLAY_WIDTH, SELFPLAY_BLOCKS = 32, 2
"""Channels and residual blocks of the network that plays itself."""
SELFPLAY_PLIES = 40
"""Half-moves after which a self-play game is stopped, so that the batch stays full."""


class _Play:
    """Search many games side by side; a game that ends or gets long is replaced."""

    def __init__(self, evaluator: Evaluator, games: int) -> None:
        # the uniform evaluator's values hardly differ: without c_stdev the trees are as broad as
        # those of OpenSpiel
        self.search = Search(
            evaluator, SearchConfig(simulations=SIMULATIONS, c_stdev=0.0), games=games, seed=1
        )
        self.begun = 0
        self.plies_G = np.zeros(games, dtype=np.int64)
        for slot in range(games):
            self._begin(slot)
            self.plies_G[slot] = slot % GAME_PLIES  # so that games do not all end at once

    def _begin(self, slot: int) -> None:
        self.search.start(slot, from_board(chess.Board()), game=self.begun)
        self.begun += 1
        self.plies_G[slot] = 0

    def move(self) -> None:
        """Search every game and play in each a move drawn by visits."""
        self.search.run()
        labels_G, promotions_G = self.search.choose(temperature=1.0)
        for slot in np.flatnonzero(labels_G >= 0).tolist():
            self.search.play(slot, int(labels_G[slot]), int(promotions_G[slot]))
        self.plies_G += 1
        for slot in np.flatnonzero((labels_G < 0) | (self.plies_G >= GAME_PLIES)).tolist():
            self._begin(slot)


def tree_rate(moves: int, games: int = TREE_GAMES) -> float:
    """Return simulations per CPU-second with the uniform evaluator, tree reuse included."""
    play = _Play(uniform, games)
    for _ in range(10):  # compiles, touches the memory, spreads the games
        play.move()
    before, began = play.search.simulations, time.process_time()
    for _ in range(moves):
        play.move()
    return (play.search.simulations - before) / (time.process_time() - began)


def network_evaluator() -> Evaluator:
    """Return a small network with random weights on one CPU thread."""
    from dataclasses import replace

    import torch

    from model.inference.evaluator import NetworkEvaluator
    from model.network.network import build
    from model.network.presets import preset

    torch.set_num_threads(1)
    row = replace(
        preset("fianchetto-xs"),
        name="fianchetto-2x32",
        width=SELFPLAY_WIDTH,
        blocks=SELFPLAY_BLOCKS,
    )
    return NetworkEvaluator(build(row, seed=0), device="cpu", amp="off")


def selfplay_rate(games: int, plies: int = SELFPLAY_PLIES) -> float:
    """Play games from the start and return moves per CPU-second, recording included."""
    search = SearchConfig(simulations=SIMULATIONS, dirichlet_fraction=0.25)
    evaluator = network_evaluator()
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
        rate = median(tree_rate(moves) for _ in range(rounds))
        progress(Tick(1, 2, "stages"))
        played = median(selfplay_rate(games) for _ in range(rounds))
    progress(Tick(2, 2, "stages"))
    return {
        "simulations": SIMULATIONS,
        "games": TREE_GAMES,
        "simulations_per_cpu_second": round(rate),
        "selfplay_moves_per_cpu_second": round(played, 1),
    }
