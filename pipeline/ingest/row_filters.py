"""Filters of the positions of replayed games.

A dropped row is counted under the first filter that refused it. Sampling is a hash of the game's moves, the ply and the seed,
so it does not depend on the rest of the chunk.

Axes: R rows, G games.
"""

from collections import Counter

import numpy as np
from numpy.typing import NDArray

from pipeline.dataset.hashing import splitmix64
from pipeline.ingest.filters import Filters
from pipeline.pgn import replay
from pipeline.pgn.san import NO_EVAL as UNKNOWN_EVAL

REASONS = (
    "kept",
    "not a labelled move",
    "filter: opening",
    "filter: clock",
    "filter: no eval",
    "filter: copies",
    "filter: positions per game",
)
KEPT, NOT_LABELLED, OPENING, CLOCK, NO_EVAL, COPIES, PER_GAME = range(len(REASONS))

NO_LABELS = 255
"""Parity of a game, all of whose moves are labels."""


def filter_rows(
    rows: replay.Rows, filled: int, games: replay.Games, parity: NDArray[np.uint8], filters: Filters, seed: int
) -> tuple[NDArray[np.int64] | None, Counter[str]]:
    """Return the rows to keep (int64, ascending; None for all), and the numbers of dropped rows by reason.

    `parity` uint8[G]: 0 or 1 if only even or odd plies are labels, NO_LABELS for games.
    """
    labelled = bool((parity != NO_LABELS).any())
    by_row = filters.skip_plies or filters.min_clock or filters.evals_only
    if not (labelled or by_row or filters.max_copies or filters.positions_per_game):
        return None, Counter()
    game = rows.game[:filled]
    reason = np.zeros(filled, dtype=np.uint8)

    def refuse(why: int, refused: NDArray[np.bool_]) -> None:
        reason[(reason == KEPT) & refused] = why

    of_game = np.ones(filled, dtype=np.bool_)
    if labelled:
        wanted = parity[game]
        of_game = wanted == NO_LABELS
        refuse(NOT_LABELLED, ~of_game & (rows.ply[:filled] % 2 != wanted))
    if filters.skip_plies:
        refuse(OPENING, of_game & (rows.ply[:filled] < filters.skip_plies))
    if filters.min_clock:
        refuse(CLOCK, rows.clock[:filled] < filters.min_clock)  # unknown is the largest number
    if filters.evals_only:
        refuse(NO_EVAL, rows.eval[:filled] == UNKNOWN_EVAL)
    if filters.max_copies or filters.positions_per_game:
        drawn = splitmix64(games.identity[game] ^ (rows.ply[:filled].astype(np.uint64) << np.uint64(48)), seed)
        for why, most, group in (
            (COPIES, filters.max_copies, rows.key[:filled]),
            (PER_GAME, filters.positions_per_game, game),
        ):
            if most:
                left = np.flatnonzero(reason == KEPT)
                reason[left[_ranks(group[left], drawn[left]) >= most]] = why
    counts = np.bincount(reason, minlength=len(REASONS))
    dropped = Counter({name: int(count) for name, count in zip(REASONS[1:], counts[1:], strict=True) if count})
    return np.flatnonzero(reason == KEPT), dropped


def _ranks(group: NDArray[np.uint32] | NDArray[np.uint64], drawn: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Return each row's rank within its group in the order of `drawn`, from 0; equal draws in the order of rows."""
    order = np.lexsort((drawn, group))
    ordered = group[order]
    fresh = np.ones(len(order), dtype=np.bool_)
    fresh[1:] = ordered[1:] != ordered[:-1]
    begins = np.flatnonzero(fresh)
    places = np.empty(len(order), dtype=np.int64)
    places[order] = np.arange(len(order)) - np.repeat(begins, np.diff(np.append(begins, len(order))))
    return places


def identify_by_position(rows: replay.Rows, filled: int, games: replay.Games, parity: NDArray[np.uint8]) -> None:
    """Set the identity of entries that are not games to their first position, so that its duplicates share a split."""
    if (parity == NO_LABELS).all():
        return
    replayed = (games.status == replay.USED) & (games.plies > 0)
    games.status[replayed & (games.plies <= parity) & (parity != NO_LABELS)] = replay.NO_MOVES  # none that is a label
    game = rows.game[:filled]
    first = np.flatnonzero((rows.ply[:filled] == parity[game]) & (parity[game] != NO_LABELS))
    games.identity[game[first]] = splitmix64(rows.key[:filled][first])
