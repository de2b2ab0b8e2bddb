"""The kernels of games, before the time of games is counted."""

import chess
import numpy as np

from engine.board.movegen import legal_planes
from engine.board.position import from_board
from engine.encoding.planes import PLANES
from engine.evaluation.handwritten import evaluate
from engine.evaluation.move_features import legal_move_features
from engine.search import SearchConfig
from engine.selfplay.generate import SelfPlayConfig, play_games


def warm_up_games() -> None:
    """Have the kernels of search, self-play and move features loaded, or compiled where this machine never ran them."""
    planes_BP = np.zeros((1, PLANES), dtype=np.uint64)
    legal_planes(from_board(chess.Board()), planes_BP[0])
    legal_move_features(planes_BP)
    for algorithm in ("puct", "gumbel"):
        search = SearchConfig(algorithm=algorithm, simulations=16, nodes=1024)
        next(play_games(evaluate, search, SelfPlayConfig(width=2, most_plies=2), games=2))
