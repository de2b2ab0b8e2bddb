"""Evaluators: what search, self-play, arena and UCI know of a player's knowledge.

An evaluator is any callable of this shape. Networks, the hand-written one and the uniform one are alike to their users.

Axes: B rows, P planes, A labels, W outcomes.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from engine.encoding import legal_mask

Evaluator = Callable[[NDArray[np.uint64]], tuple[NDArray[np.float32], NDArray[np.float32]]]
"""planes uint64[B, 77] -> (policy logits float32[B, 4096], wdl float32[B, 3]).

Mover's view. Logits of illegal labels carry no meaning (they may be -inf): users mask by the planes' own legality. wdl
is the probabilities of win, draw and loss, in that order, summing to one.
"""


def uniform(planes_BP: NDArray[np.uint64]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Know nothing: every legal move alike (logit 0, illegal ones -inf), every outcome alike. An Evaluator."""
    logits_BA = np.where(legal_mask(planes_BP), np.float32(0.0), np.float32(-np.inf))
    return logits_BA, np.full((len(planes_BP), 3), 1.0 / 3.0, dtype=np.float32)
