"""Random numbers in compiled code.

Each game has its own stream, so it does not depend on the other games in a batch. A stream is a
uint64[1] that splitmix64 advances (Steele, Lea and Flood 2014). Its integers are the same on every
machine. Numbers computed with logarithms may differ in their last bits.
"""

from math import cos, log, pi, sqrt
from typing import Any

import numpy as np
from numba import njit

from engine.board.bitboard import U
from engine.kernels import NO_REFCOUNT

GOLDEN_GAMMA = U(0x9E37_79B9_7F4A_7C15)
FIRST_FACTOR, SECOND_FACTOR = U(0xBF58_476D_1CE4_E5B9), U(0x94D0_49BB_1331_11EB)
_UNIFORM_STEP = 2.0**-53


def mix_bits(word: Any) -> Any:
    """Return splitmix64's hash of a word or of each word of an array, uint64; it is a bijection."""
    word = (word ^ (word >> U(30))) * FIRST_FACTOR
    word = (word ^ (word >> U(27))) * SECOND_FACTOR
    return word ^ (word >> U(31))


splitmix64 = njit(**NO_REFCOUNT)(mix_bits)
"""`mix_bits` in compiled code."""


@njit(**NO_REFCOUNT)
def seed_stream(state: Any, seed: Any, game: Any) -> None:
    """Initialize the stream (uint64[1]) of game number `game` under `seed` (both uint64)."""
    state[0] = splitmix64(splitmix64(seed + GOLDEN_GAMMA) ^ (game * GOLDEN_GAMMA + U(1)))


@njit(**NO_REFCOUNT)
def uniform(state: Any) -> Any:
    """Return a random float64 in the open interval (0, 1) and advance the stream."""
    state[0] += GOLDEN_GAMMA
    return (np.float64(splitmix64(state[0]) >> U(11)) + 0.5) * _UNIFORM_STEP


@njit(**NO_REFCOUNT)
def gumbel(state: Any) -> Any:
    """Draw from the standard Gumbel distribution, float64."""
    return -log(-log(uniform(state)))


@njit(**NO_REFCOUNT)
def _normal(state: Any) -> Any:
    """Draw from the standard normal distribution, float64 (Box and Muller 1958)."""
    return sqrt(-2.0 * log(uniform(state))) * cos(2.0 * pi * uniform(state))


@njit(**NO_REFCOUNT)
def gamma(state: Any, alpha: Any) -> Any:
    """Draw from Gamma(alpha, 1), float64.

    Method of Marsaglia and Tsang (2000), with their correction for alpha below 1.
    """
    factor = 1.0
    if alpha < 1.0:
        factor = uniform(state) ** (1.0 / alpha)
        alpha += 1.0
    shape = alpha - 1.0 / 3.0
    scale = 1.0 / sqrt(9.0 * shape)
    while True:
        normal = _normal(state)
        cube = (1.0 + scale * normal) ** 3
        if cube > 0.0 and log(
            uniform(state)
        ) < 0.5 * normal * normal + shape - shape * cube + shape * log(cube):
            return factor * shape * cube


@njit(**NO_REFCOUNT)
def dirichlet(state: Any, alpha: Any, out: Any) -> None:
    """Fill `out` (float64[M]) with a sample of the symmetric Dirichlet(alpha)."""
    total = 0.0
    for index in range(len(out)):
        out[index] = gamma(state, alpha)
        total += out[index]
    for index in range(len(out)):
        out[index] = out[index] / total if total > 0.0 else 1.0 / len(out)
