"""Chess engine on arrays: positions, legal moves, encodings, evaluators, search, matches, UCI."""

from engine.jit_cache import key_cache_by_sources

key_cache_by_sources()  # Numba reads its cache folder when the first kernel is defined
