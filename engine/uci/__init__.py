"""The UCI engine: what a chess GUI or a match runner talks to."""

from engine.uci.engine import Engine, Load
from engine.uci.options import Options

__all__ = ["Engine", "Load", "Options"]
