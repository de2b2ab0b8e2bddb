"""How long a person thinks about a move: shares of the clock measured on games with clocks.

Fitted by `python -m tests.pipeline.board.fit_think_times` (README.md says on which games).
"""

import numpy as np

QUANTILES = (0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 0.98)
"""Quantiles in each row of TABLE; times above the last one are not drawn."""
BULLET_SECONDS = 180
"""Starting time below which a game is bullet."""
MOVES, LEFT = (9, 21, 41), (0.2, 0.5)
"""Bounds of the groups: move number, and share of the starting time that is left."""
TABLE = {
    (0, 0, 2): (0.0, 0.0, 0.008, 0.017, 0.019, 0.045, 0.11),
    (0, 1, 1): (0.0, 0.034, 0.069, 0.103, 0.154, 0.317, 0.638),
    (0, 1, 2): (0.0, 0.0, 0.02, 0.035, 0.053, 0.111, 0.243),
    (0, 2, 0): (0.0, 0.0, 0.1, 0.167, 0.25, 0.5, 1.0),
    (0, 2, 1): (0.0, 0.0, 0.044, 0.071, 0.111, 0.2, 0.39),
    (0, 2, 2): (0.0, 0.005, 0.026, 0.042, 0.065, 0.133, 0.29),
    (0, 3, 0): (0.0, 0.0, 0.0, 0.091, 0.182, 0.417, 1.0),
    (0, 3, 1): (0.0, 0.0, 0.022, 0.049, 0.077, 0.154, 0.277),
    (0, 3, 2): (0.0, 0.0, 0.013, 0.024, 0.035, 0.087, 0.189),
    (1, 0, 1): (0.0, 0.0, 0.007, 0.012, 0.023, 0.043, 0.081),
    (1, 0, 2): (0.0, 0.001, 0.004, 0.007, 0.011, 0.029, 0.071),
    (1, 1, 0): (0.0, 0.033, 0.091, 0.173, 0.272, 0.5, 0.82),
    (1, 1, 1): (0.0, 0.01, 0.025, 0.043, 0.079, 0.179, 0.381),
    (1, 1, 2): (0.0, 0.004, 0.01, 0.017, 0.031, 0.072, 0.156),
    (1, 2, 0): (0.0, 0.024, 0.065, 0.114, 0.2, 0.409, 0.727),
    (1, 2, 1): (0.0, 0.01, 0.025, 0.045, 0.079, 0.17, 0.352),
    (1, 2, 2): (0.0, 0.004, 0.011, 0.02, 0.035, 0.079, 0.176),
    (1, 3, 0): (0.0, 0.0, 0.034, 0.067, 0.125, 0.3, 0.667),
    (1, 3, 1): (0.0, 0.005, 0.014, 0.023, 0.039, 0.085, 0.195),
    (1, 3, 2): (0.0, 0.001, 0.005, 0.009, 0.016, 0.039, 0.1),
}
"""Share of the remaining time at each of QUANTILES, by speed, move number and time left."""
MAX_SHARE = 0.2
"""Maximum share of the remaining time for a move, so that the clock lasts."""
RESERVE_SECONDS = 0.5
"""Seconds that a move leaves on the clock, for the network and the page."""


def table_key(initial: float, move: int, left: float) -> tuple[int, int, int]:
    """Return the key of TABLE for a move number with `left` of `initial` seconds on the clock."""
    speed = int(initial >= BULLET_SECONDS)
    return speed, int(np.digitize(move, MOVES)), int(np.digitize(left / initial, LEFT))


def draw_seconds(initial: float, move: int, left: float, random: np.random.Generator) -> float:
    """Draw the seconds that a person thinks about a move, limited so that the clock lasts."""
    speed, moves, rest = table_key(max(initial, 1.0), move, left)
    # early in a game, hardly any clock is low: take the next row with enough moves
    row = next(
        TABLE[speed, moves, more] for more in range(rest, 3) if (speed, moves, more) in TABLE
    )
    share = min(float(np.interp(random.uniform(0, QUANTILES[-1]), QUANTILES, row)), MAX_SHARE)
    return min(share * left, max(left - RESERVE_SECONDS, 0.0))
