"""Hashes for random but repeatable decisions."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.board.rng import GOLDEN_GAMMA, mix_bits


def splitmix64(words: NDArray[np.uint64], seed: int = 0) -> NDArray[np.uint64]:
    """Hash each word with splitmix64 (Steele, Lea and Flood 2014); each seed gives other hashes."""
    with np.errstate(over="ignore"):
        hashes: NDArray[np.uint64] = mix_bits(
            words + np.uint64((seed + 1) * int(GOLDEN_GAMMA) % (1 << 64))
        )
    return hashes


def to_unit_interval(hashes: NDArray[Any]) -> NDArray[np.float64]:
    """Map hashes to uniform numbers in [0, 1), using their upper 53 bits."""
    return (hashes >> np.uint64(11)).astype(np.float64) / float(1 << 53)
