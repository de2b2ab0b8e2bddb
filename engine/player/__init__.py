"""The player behind UCI, matches, the board and the Python API."""

from engine.player.lines import Line, Play
from engine.player.player import Player, Request, Style
from engine.player.policy import Conditions

__all__ = ["Conditions", "Line", "Play", "Player", "Request", "Style"]
