"""A player's trees are freed with it, without a run of the garbage collector."""

import gc
import weakref

import chess

from engine.evaluation.evaluator import uniform
from engine.player import Player, Request
from engine.player.player import Style
from engine.search import SearchConfig


def test_a_player_is_in_no_reference_cycle() -> None:
    player = Player(uniform, Style(search=SearchConfig(simulations=4)))
    player.play(Request(board=chess.Board()))
    freed = weakref.ref(player)
    gc.disable()
    try:
        del player
        assert freed() is None
    finally:
        gc.enable()
