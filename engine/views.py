"""Views: what other systems' encodings see, made from the stored rows by tables.

A view is a row, not a class: which stored plane feeds each of its planes when Black is to move (after a top-to-bottom
mirror), and which label each label becomes. Nothing is stored twice, and a batch is turned when it is made.

Axes: B rows, P planes.
"""

import difflib
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from engine.encoding import LABELS, PIECE_PLANES, PLANES, TURN_PLANE, steps
from engine.errors import UserError
from engine.legal import MOVE_PLANES


class UnknownViewError(UserError):
    """A view that does not exist."""


@dataclass(frozen=True, eq=False)
class View:
    """How stored rows become one system's planes and labels."""

    name: str
    planes: int
    """Planes a position has in this view."""
    labels: int
    """Size of the move vocabulary."""
    black_planes: NDArray[np.int64] | None
    """[planes] stored plane for each plane of a row with Black to move, read top to bottom; None keeps the mover's view."""
    black_labels: NDArray[np.int64] | None
    """[labels] label in the view of each stored label of a row with Black to move, its own inverse; None as above."""
    turn_inverted: bool
    """Whether plane 12 is all ones when *White* is to move."""


def _mirrored_types() -> NDArray[np.int64]:
    """Give the move type that each type becomes when the board is turned top to bottom, int64[64]."""
    index = {step: kind for kind, step in enumerate(steps())}
    return np.array([index[file, -rank] for file, rank in steps()], dtype=np.int64)


@cache
def views() -> dict[str, View]:
    """Give every view by name."""
    kinds = _mirrored_types()
    pieces = np.arange(PIECE_PLANES, dtype=np.int64) ^ 1  # own and opponent's change places
    planes = np.concatenate([pieces, [TURN_PLANE], MOVE_PLANES + kinds]).astype(np.int64)
    labels = (kinds[:, None] * 64 + (np.arange(64) ^ 56)[None, :]).reshape(LABELS)
    rows = (
        View("marro77", PLANES, LABELS, None, None, False),
        View("chessmarro77", PLANES, LABELS, planes, labels, True),
    )
    return {row.name: row for row in rows}


def view(name: str) -> View:
    """Give the view of that name; raises UnknownViewError with the nearest one."""
    if name not in views():
        near = difflib.get_close_matches(name, views(), n=1, cutoff=0.0)
        raise UnknownViewError(f"no view {name!r}: did you mean {near[0]!r}? There are {', '.join(views())}")
    return views()[name]


def apply(shown: View, planes_BP: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Turn stored planes uint64[B, 77] into the view's planes uint64[B, view.planes]."""
    out = planes_BP.copy()
    if shown.black_planes is not None:
        black_B = planes_BP[:, TURN_PLANE] != 0
        out[black_B] = planes_BP[black_B][:, shown.black_planes].byteswap()
    if shown.turn_inverted:
        out[:, TURN_PLANE] = ~planes_BP[:, TURN_PLANE]
    return out


def apply_labels(shown: View, black_B: NDArray[np.bool_], labels_B: NDArray[np.integer]) -> NDArray[np.int64]:
    """Turn stored labels into the view's (or back: the mapping is its own inverse), int64[B]."""
    labels = labels_B.astype(np.int64)
    if shown.black_labels is None:
        return labels
    return np.where(black_B, shown.black_labels[labels], labels)
