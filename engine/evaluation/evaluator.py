"""Define evaluators, through which search, self-play, matches and UCI use a network.

An evaluator is any callable of type `Evaluator`: a network, `handwritten.evaluate`, or `uniform`.

Axes: B rows, P planes, A labels, W outcomes.
"""

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from engine.encoding.planes import LABELS

Evaluator = Callable[[NDArray[np.uint64]], tuple[NDArray[np.float32], NDArray[np.float32]]]
"""planes uint64[B, 77] -> (policy logits float32[B, 4096], wdl float32[B, 3]).

Both results are for the side to move. Logits of illegal labels are undefined and may be -inf:
callers mask them by the planes. wdl holds the probabilities of win, draw and loss, which sum to
one. Both arrays may be read-only or reused by the next call: copy them to keep or change them.
"""

_ZEROS_A, _THIRDS_W = np.zeros(LABELS, np.float32), np.full(3, 1.0 / 3.0, np.float32)


def uniform(planes_BP: NDArray[np.uint64]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return logits of 0 for all labels and 1/3 for each outcome; this is an `Evaluator`.

    All rows share the same read-only memory, because filling 16 kB per row would take longer than
    the rest of a search round.
    """
    rows = len(planes_BP)
    return np.broadcast_to(_ZEROS_A, (rows, LABELS)), np.broadcast_to(_THIRDS_W, (rows, 3))


CENTIPAWN_SCALE, CENTIPAWN_BEND = 90.0, 1.5637541897
"""Factors of lc0's formula, cp = 90 * tan(1.5637541897 * value), which is at most 12,780."""


def to_centipawns(value: float) -> int:
    """Convert win minus loss, -1 to 1, to centipawns for the same side."""
    return round(CENTIPAWN_SCALE * math.tan(CENTIPAWN_BEND * min(max(value, -1.0), 1.0)))
