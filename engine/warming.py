"""The kernels of games, before the time of games is counted."""

import chess
import numpy as np

from engine.encoding import PLANES
from engine.handwritten import evaluate
from engine.legal import legal_planes
from engine.move_facts import facts_of
from engine.position import from_board
from engine.search import SearchConfig
from engine.selfplay import SelfPlayConfig, play_games


def warm_up_games() -> None:
    """Have the kernels of search, self-play and move features loaded, or compiled where this machine never ran them."""
    planes_BP = np.zeros((1, PLANES), dtype=np.uint64)
    legal_planes(from_board(chess.Board()), planes_BP[0])
    facts_of(planes_BP)
    for algorithm in ("puct", "gumbel"):
        search = SearchConfig(algorithm=algorithm, simulations=16, nodes=1024)
        next(play_games(evaluate, search, SelfPlayConfig(width=2, most_plies=2), games=2))
