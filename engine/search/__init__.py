"""Batched Monte Carlo tree search of many games at a time: PUCT and Gumbel."""

from engine.search.config import SearchConfig, SearchError
from engine.search.results import Root
from engine.search.search import Search

__all__ = ["Root", "Search", "SearchConfig", "SearchError"]
