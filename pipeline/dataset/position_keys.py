"""Compute 64-bit keys of stored positions, and find keys in shards.

Two rows have the same key if their planes and castling rights are the same: pieces, side to move,
castling rights, and a legal en-passant capture, which is part of the move planes. Threefold
repetition compares positions in the same way.

Axes: R rows, P planes.
"""

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.encoding.planes import PLANES
from engine.progress import Progress, Tick, silent
from pipeline.dataset.dataset import Shard, row_groups
from pipeline.dataset.hashing import splitmix64

KEY_COLUMNS = ("planes", "castling")
"""Columns that determine a key."""
BLOCK = 1024
"""Rows hashed at a time, so that they stay in the core's cache."""
_ODD = 0xD6E8_FEB8_6659_FD93


@cache
def _salts() -> NDArray[np.uint64]:
    """Return a random word for each plane and for the castling rights, uint64[P + 1]."""
    return splitmix64(np.arange(PLANES + 1, dtype=np.uint64) << np.uint64(32))


def position_keys(planes_RP: NDArray[np.uint64], castling_R: NDArray[Any]) -> NDArray[np.uint64]:
    """Return the keys of positions, uint64[R]: a hash of the sum of the planes' salted hashes."""
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


def find_keys(
    keys_R: NDArray[np.uint64], shards: Sequence[Shard], progress: Progress = silent
) -> NDArray[np.bool_]:
    """Return which keys occur in the shards, bool[R]; each shard is read once."""
    wanted, places = np.unique(keys_R, return_inverse=True)
    found = np.zeros(len(wanted), dtype=np.bool_)
    done, total = 0, sum(shard.rows for shard in shards)
    for rows in row_groups(shards, KEY_COLUMNS) if len(wanted) else ():
        keys = position_keys(rows["planes"], rows["castling"])
        at = np.searchsorted(wanted, keys).clip(max=len(wanted) - 1)
        found[at[wanted[at] == keys]] = True
        done += len(keys)
        progress(Tick(done, total, "positions", stage="looking positions up in train"))
    return found[places]
