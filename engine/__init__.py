"""Chess as arrays: bitboards, legal-move planes, labels, encodings, evaluators."""

from engine.jit_cache import key_cache_by_sources

key_cache_by_sources()  # must precede the first kernel: Numba reads the folder when a kernel is defined
