"""The UCI engine, for chess GUIs and match runners."""

from engine.uci.engine import Engine, Load
from engine.uci.options import Options

__all__ = ["Engine", "Load", "Options"]
