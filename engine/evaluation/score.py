"""Expected scores as centipawns, for UCI, PGN and match records."""

import math

CENTIPAWN_SCALE, CENTIPAWN_BEND = 90.0, 1.5637541897
"""lc0's `centipawn` score: cp = 90 * tan(1.5637541897 * value), 12,780 at most."""


def centipawns(value: float) -> int:
    """Turn an expected score in [-1, 1] into centipawns, the same side's view."""
    return round(CENTIPAWN_SCALE * math.tan(CENTIPAWN_BEND * min(max(value, -1.0), 1.0)))
