"""Chess as arrays: bitboards, legal-move planes, labels, encodings, evaluators."""

from engine.jit_cache import key_cache_by_sources

key_cache_by_sources()  # before the first kernel is defined, or it would look in the old place
