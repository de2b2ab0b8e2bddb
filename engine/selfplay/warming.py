"""The kernels of games, before the time of games is counted."""

import chess

from engine.encoding.planes import planes_of
from engine.evaluation.handwritten import evaluate
from engine.evaluation.move_features import legal_move_features
from engine.search import SearchConfig
from engine.selfplay.generate import SelfPlayConfig, play_games


def warm_up_games() -> None:
    """Have the kernels of search, self-play and move features loaded, or compiled where this machine never ran them."""
    legal_move_features(planes_of([chess.Board()]))
    for algorithm in ("puct", "gumbel"):
        search = SearchConfig(algorithm=algorithm, simulations=16, nodes=1024)
        next(play_games(evaluate, search, SelfPlayConfig(width=2, most_plies=2), games=2))
