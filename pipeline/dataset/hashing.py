"""Hashes for random but repeatable decisions: splitmix64's finalizer, and numbers in [0, 1) from it."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

GOLDEN = 0x9E37_79B9_7F4A_7C15


def splitmix64(words: NDArray[np.uint64], seed: int = 0) -> NDArray[np.uint64]:
    """Hash each word: the value of splitmix64 (Steele, Lea and Flood 2014) `seed` + 1 steps after that state."""
    with np.errstate(over="ignore"):
        out = words + np.uint64((seed + 1) * GOLDEN % (1 << 64))
        out ^= out >> np.uint64(30)
        out *= np.uint64(0xBF58_476D_1CE4_E5B9)
        out ^= out >> np.uint64(27)
        out *= np.uint64(0x94D0_49BB_1331_11EB)
        out ^= out >> np.uint64(31)
    return out


def unit_interval(hashes: NDArray[Any]) -> NDArray[np.float64]:
    """Return uniform numbers in [0, 1) for hashes, from their upper 53 bits."""
    return (hashes >> np.uint64(11)).astype(np.float64) / float(1 << 53)
