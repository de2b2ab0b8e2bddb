"""The result of a search on a python-chess board."""

from dataclasses import dataclass

import chess

from engine.encoding.planes import move_of
from engine.search import Search


@dataclass(frozen=True, slots=True)
class SearchedMove:
    """A legal move as the search sees it, mover's view."""

    move: chess.Move
    visits: int
    value: float
    """Win minus loss after the move, -1 to 1; the position's value where it was not visited."""
    mate: int
    """Plies to a proven mate, this move included: positive for the mover, negative against; 0 for none."""
    variation: tuple[chess.Move, ...]
    """This move and the best ones after it; empty beyond the lines that were asked for."""


@dataclass(frozen=True, slots=True)
class Analysis:
    """Result of a search in one position, from the mover's point of view."""

    moves: tuple[SearchedMove, ...]
    """All legal moves, the best first; promotions are four moves."""
    value: float
    """Win minus loss, -1 to 1."""
    wdl: tuple[float, float, float]
    """Probabilities of win, draw, loss."""
    simulations: int


def read_analysis(search: Search, board: chess.Board, lines: int) -> Analysis:
    """Return the result of a search in slot 0, whose root is `board`, with the variations of the best `lines` moves."""
    root = search.root(0)
    labels, promotions = search.choose()
    order = root.ranked(root.index_of(int(labels[0]), int(promotions[0])))
    moves = []
    for place, index in enumerate(order):
        line = search.line(0, index) if place < lines else []
        moves.append(
            SearchedMove(
                move_of(int(root.labels[index]), int(root.promotions[index]), board.turn),
                int(root.visits[index]),
                root.value_at(index),
                int(root.mates[index]),
                tuple(
                    move_of(label, promotion, board.turn ^ bool(ply % 2)) for ply, (label, promotion) in enumerate(line)
                ),
            )
        )
    draw = min(root.draw, 1 - abs(root.value))
    wdl = ((1 + root.value - draw) / 2, draw, (1 - root.value - draw) / 2)
    return Analysis(tuple(moves), root.value, wdl, root.simulations)
