"""Move vocabularies: tables between a system's move index and (label, promotion).

name         index                                        size   index of an under-promotion
marro4096    type * 64 + from: this project's labels      4096   that of the queen promotion
fromto4096   from * 64 + to                               4096   that of the queen promotion
factored     from * 64 + to; networks predict from (64), then to given from (64 x 64)
az4672       plane * 64 + from, 73 planes                 4672   its own

The 73 planes are AlphaZero's (Silver et al. 2017, arXiv:1712.01815, "Representation"): 56
queen-like moves (a number of squares in a direction), 8 knight moves, 9 under-promotions. The paper
gives no order within each kind. Here the first 64 planes are this project's move types. Plane
64 + 3 * piece + direction is an under-promotion to a knight, bishop or rook (piece 0, 1, 2) with a
step of -1, 0 or +1 files (direction 0, 1, 2; -1 is towards the a-file for both sides). Any other
pawn move to the last rank promotes to a queen.

Squares and types are in the mover's view or in an absolute view (engine/encoding/views.py).
Functions take labels in the mover's view; `turned_B` marks the rows of an absolute view with Black
to move.

Axes: B rows, A index of the vocabulary, L label, P promotion piece (python-chess piece type, 0 for
none).
"""

from dataclasses import dataclass, replace
from functools import cache

import chess
import numpy as np
from numpy.typing import NDArray

from engine.encoding.planes import LABELS, steps, target_table
from engine.encoding.views import view
from engine.errors import UserError, suggest_name

UNDER_PROMOTIONS = (chess.KNIGHT, chess.BISHOP, chess.ROOK)
NO_MOVE_INDEX = -1
"""Entry of a table for a move that does not exist."""


class UnknownVocabularyError(UserError):
    """A move vocabulary that does not exist."""


class MoveIndexError(UserError):
    """A move without an index in a vocabulary."""


@dataclass(frozen=True, eq=False, kw_only=True, slots=True)
class Vocabulary:
    """A numbering of moves."""

    name: str
    """Name of the vocabulary in presets."""
    labels: NDArray[np.int64]
    """[A] label of each index, in the same view; NO_MOVE_INDEX if the move leaves the board."""
    promotions: NDArray[np.int64]
    """[A] promotion piece of each index that is an under-promotion; 0 for the others, where a pawn
    on the last rank becomes a queen."""
    index: NDArray[np.int64]
    """[L, P] index of each label and promotion piece, or NO_MOVE_INDEX; a queen has that of 0."""
    turned: NDArray[np.int64]
    """[A] index of the same move on the board mirrored top to bottom; its own inverse."""
    planes: int = 0
    """Number of from-square planes if the indices form planes, else 0."""
    factored: bool = False
    """Whether networks predict the from-square first, then the to-square given it."""

    @property
    def size(self) -> int:
        """Number of indices."""
        return len(self.labels)

    @property
    def under_promotions(self) -> bool:
        """Whether each under-promotion has an index."""
        return bool(self.promotions.any())


def _invert_tables(
    labels_A: NDArray[np.int64], promotions_A: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return the index of each label and promotion piece, int64[L, P]; NO_MOVE_INDEX for none.

    Under-promotions that a vocabulary lacks have the index of the queen promotion.
    """
    table = np.full((LABELS, 6), NO_MOVE_INDEX, dtype=np.int64)
    plain = np.flatnonzero((labels_A != NO_MOVE_INDEX) & (promotions_A == 0))
    special = np.flatnonzero(promotions_A)
    shared = (0, chess.QUEEN) if len(special) else (0, *UNDER_PROMOTIONS, chess.QUEEN)
    table[labels_A[plain, None], shared] = plain[:, None]
    table[labels_A[special], promotions_A[special]] = special
    return table


def _make_square_pairs() -> NDArray[np.int64]:
    """Return the label for each pair of squares, int64[64 * 64]; NO_MOVE_INDEX if there is none."""
    table = np.full(64 * 64, NO_MOVE_INDEX, dtype=np.int64)
    for label, target in enumerate(target_table().tolist()):
        if target >= 0:
            table[label % 64 * 64 + target] = label
    return table


def _find_under_promotions() -> NDArray[np.int64]:
    """Return the label for each under-promotion index, int64[9 * 64]; NO_MOVE_INDEX without a move.

    Includes moves from row 6 to row 7, where Black's pawns promote in an absolute view.
    """
    kinds = {step: kind for kind, step in enumerate(steps())}
    table = np.full((3, 3, 64), NO_MOVE_INDEX, dtype=np.int64)
    for direction, file in enumerate((-1, 0, 1)):
        for square in (*range(8, 16), *range(48, 56)):
            label = kinds[file, 1 if square < 32 else -1] * 64 + square
            if target_table()[label] >= 0:
                table[:, direction, square] = label
    return table.reshape(-1)


@cache
def vocabularies() -> dict[str, Vocabulary]:
    """Return all vocabularies by name."""
    labels, none = np.arange(LABELS, dtype=np.int64), np.zeros(LABELS, dtype=np.int64)
    turned_labels = view("chessmarro77").black_labels
    assert turned_labels is not None
    pairs, flipped = _make_square_pairs(), np.arange(64) ^ 56
    turned_pairs = (flipped[:, None] * 64 + flipped[None, :]).reshape(-1).astype(np.int64)
    squares = Vocabulary(
        name="fromto4096",
        labels=pairs,
        promotions=none,
        index=_invert_tables(pairs, none),
        turned=turned_pairs,
    )
    under = _find_under_promotions()
    az_labels = np.concatenate([labels, under])
    az_promotions = np.concatenate(
        [none, np.where(under != NO_MOVE_INDEX, np.repeat(UNDER_PROMOTIONS, 3 * 64), 0)]
    )
    turned_under = LABELS + np.arange(len(under)) // 64 * 64 + (np.arange(len(under)) % 64 ^ 56)
    rows = (
        Vocabulary(
            name="marro4096",
            labels=labels,
            promotions=none,
            index=_invert_tables(labels, none),
            turned=turned_labels,
            planes=64,
        ),
        squares,
        replace(squares, name="factored", factored=True),
        Vocabulary(
            name="az4672",
            labels=az_labels,
            promotions=az_promotions,
            index=_invert_tables(az_labels, az_promotions),
            turned=np.concatenate([turned_labels, turned_under]),
            planes=73,
        ),
    )
    assert [row.size for row in rows] == [4096, 4096, 4096, 4672]
    return {row.name: row for row in rows}


def vocabulary(name: str) -> Vocabulary:
    """Return a vocabulary by name; raise UnknownVocabularyError if there is none."""
    if name not in vocabularies():
        raise UnknownVocabularyError(
            f"unknown move vocabulary {name[:40]!r}: {suggest_name(name, vocabularies())}"
        )
    return vocabularies()[name]


def find_indices(
    moves: Vocabulary,
    turned_B: NDArray[np.bool_],
    labels_B: NDArray[np.integer],
    promotions_B: NDArray[np.integer],
) -> NDArray[np.int64]:
    """Return the index of each move, int64[B], from mover's-view labels and promotion pieces.

    Raises MoveIndexError for a move that is not in the vocabulary.
    """
    labels, promotions = labels_B.astype(np.int64), promotions_B.astype(np.int64)
    wrong_B = (labels < 0) | (labels >= LABELS) | (promotions < 0) | (promotions > chess.QUEEN)
    if not wrong_B.any():
        index_B = moves.index[labels, promotions]
        wrong_B = index_B == NO_MOVE_INDEX
    if wrong_B.any():
        row = int(wrong_B.argmax())
        raise MoveIndexError(
            f"label {labels[row]} with promotion {promotions[row]} is not a move in the vocabulary "
            f"{moves.name}"
        )
    return np.where(turned_B, moves.turned[index_B], index_B)
