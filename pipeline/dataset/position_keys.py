"""Keys of stored positions: what makes two of them the same to a network, in 64 bits.

Two rows have one key when their planes and castling rights are the same: pieces, turn, rights, and a legal en-passant capture,
which is a move plane. That is the sameness of the rules' threefold repetition, and of ingest's own keys, which are not stored.

Axes: R rows, P planes.
"""

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.encoding.planes import PLANES
from pipeline.dataset.hashing import splitmix64

KEYED_BY = ("planes", "castling")
"""The columns that a key is made of."""
BLOCK = 1024
"""Rows that are hashed together: what is in hand stays in a core's cache."""
_ODD = 0xD6E8_FEB8_6659_FD93


@cache
def _salts() -> NDArray[np.uint64]:
    """Give each plane, and the castling rights, a word of its own [P + 1]."""
    return splitmix64(np.arange(PLANES + 1, dtype=np.uint64) << np.uint64(32))


def position_keys(planes_RP: NDArray[np.uint64], castling_R: NDArray[Any]) -> NDArray[np.uint64]:
    """Hash positions, uint64[R]: each plane is stirred with its own salt, and the sum of them once more."""
    keys = np.empty(len(planes_RP), dtype=np.uint64)
    salts = _salts()
    for begin in range(0, len(planes_RP), BLOCK):
        rows = slice(begin, begin + BLOCK)
        words = planes_RP[rows] ^ salts[:PLANES]
        words *= np.uint64(_ODD)
        words ^= words >> np.uint64(32)
        words *= np.uint64(_ODD)
        words ^= words >> np.uint64(32)
        keys[rows] = words.sum(axis=1, dtype=np.uint64)
    return splitmix64(keys ^ splitmix64(castling_R.astype(np.uint64) ^ salts[PLANES]))
