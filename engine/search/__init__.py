"""Batched Monte Carlo tree search: PUCT and Gumbel, many games at a time."""

from engine.search.config import SearchConfig, SearchError
from engine.search.results import Root
from engine.search.search import Search

__all__ = ["Root", "Search", "SearchConfig", "SearchError"]
