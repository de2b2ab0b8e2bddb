"""Evaluators: what search, self-play, arena and UCI know of a player's knowledge.

An evaluator is any callable of this shape. Networks, the hand-written one and the uniform one are alike to their users.

Axes: B rows, P planes, A labels, W outcomes.
"""

from collections.abc import Callable
from functools import cache

import numpy as np
from numpy.typing import NDArray

from engine.encoding.planes import LABELS

Evaluator = Callable[[NDArray[np.uint64]], tuple[NDArray[np.float32], NDArray[np.float32]]]
"""planes uint64[B, 77] -> (policy logits float32[B, 4096], wdl float32[B, 3]).

Mover's view. Logits of illegal labels carry no meaning (they may be -inf): users mask by the planes' own legality. wdl
is the probabilities of win, draw and loss, in that order, summing to one. Both may lie in memory that the evaluator uses
again or that nobody may write to: read them before the next call, and copy what is to be changed.
"""


def uniform(planes_BP: NDArray[np.uint64]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Know nothing: every move alike (logit 0), every outcome alike. An Evaluator.

    Every row is the same memory, which cannot be written to: filling 16 kB a row would take longer than the rest of a
    search's round.
    """
    zeros_A, thirds_W = _nothing()
    return np.broadcast_to(zeros_A, (len(planes_BP), LABELS)), np.broadcast_to(thirds_W, (len(planes_BP), 3))


@cache
def _nothing() -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Make a row of zeros and one of thirds."""
    return np.zeros(LABELS, np.float32), np.full(3, 1.0 / 3.0, np.float32)
