"""Chess as arrays: bitboards, legal-move planes, labels, encodings, evaluators."""

from engine.jit_cache import key_cache_by_sources

key_cache_by_sources()  # before any kernel is defined: Numba then reads its cache folder
