"""Compute 64-bit keys of stored positions, and find keys in shards.

Rows with the same planes and castling rights have the same key. The planes contain the pieces, the
side to move and the legal moves, en-passant captures included, so that positions are compared as
they are for threefold repetition.

Axes: R rows, P planes.
"""

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.encoding.planes import PLANES
from engine.progress import Progress, Tick, silent
from pipeline.dataset.dataset import Shard, read_row_groups
from pipeline.dataset.hashing import splitmix64

KEY_COLUMNS = ("planes", "castling")
"""Columns from which a key is computed."""
BLOCK_ROWS = 1024
"""Number of rows that are hashed at a time, few enough for the core's cache."""
_ODD_MULTIPLIER = 0xD6E8_FEB8_6659_FD93


@cache
def _salts() -> NDArray[np.uint64]:
    """Return a pseudorandom word for each plane and one for the castling rights, uint64[P + 1]."""
    return splitmix64(np.arange(PLANES + 1, dtype=np.uint64) << np.uint64(32))


def hash_positions(planes_RP: NDArray[np.uint64], castling_R: NDArray[Any]) -> NDArray[np.uint64]:
    """Return the keys of positions, uint64[R]: hashes of their planes and castling rights."""
    keys = np.empty(len(planes_RP), dtype=np.uint64)
    salts = _salts()
    for begin in range(0, len(planes_RP), BLOCK_ROWS):
        rows = slice(begin, begin + BLOCK_ROWS)
        words = planes_RP[rows] ^ salts[:PLANES]
        words *= np.uint64(_ODD_MULTIPLIER)
        words ^= words >> np.uint64(32)
        words *= np.uint64(_ODD_MULTIPLIER)
        words ^= words >> np.uint64(32)
        keys[rows] = words.sum(axis=1, dtype=np.uint64)
    return splitmix64(keys ^ splitmix64(castling_R.astype(np.uint64) ^ salts[PLANES]))


def find_keys(
    keys_R: NDArray[np.uint64], shards: Sequence[Shard], progress: Progress = silent
) -> NDArray[np.bool_]:
    """Return which of the keys occur in the shards, bool[R]; each shard is read once."""
    wanted, places = np.unique(keys_R, return_inverse=True)
    found = np.zeros(len(wanted), dtype=np.bool_)
    done, total = 0, sum(shard.rows for shard in shards)
    for rows in read_row_groups(shards, KEY_COLUMNS) if len(wanted) else ():
        keys = hash_positions(rows["planes"], rows["castling"])
        index = np.searchsorted(wanted, keys).clip(max=len(wanted) - 1)
        found[index[wanted[index] == keys]] = True
        done += len(keys)
        progress(Tick(done, total, "positions", stage="looking positions up in train"))
    return found[places]
