"""The result of choosing a move: all legal moves of a python-chess board, best first."""

from collections.abc import Iterator
from dataclasses import dataclass

import chess

from engine.encoding.planes import move_of
from engine.search import Search


@dataclass(frozen=True, slots=True)
class Line:
    """A legal move as a player sees it, mover's view."""

    move: chess.Move
    value: float
    """Win minus loss after the move, -1 to 1; the position's value where it was not searched."""
    draw: float
    """Probability of a draw after the move, or in the position."""
    visits: int = 0
    """Simulations of a search for the best move."""
    mate: int = 0
    """Plies to a proven mate, this move included: positive for the mover, negative against."""
    share: float = 0.0
    """Probability of the policy, at temperature 1; 0 after a search for the best move."""
    variation: tuple[chess.Move, ...] = ()
    """This move and the best ones after it; empty beyond the lines that were asked for."""


@dataclass(frozen=True, slots=True)
class Play:
    """A chosen move and the evaluations behind it, from the mover's point of view."""

    moves: tuple[Line, ...]
    """The moves that were allowed, the chosen one first; in a policy a promotion is one move."""
    value: float
    """Win minus loss of the position, -1 to 1."""
    wdl: tuple[float, float, float]
    """Probabilities of win, draw, loss of the position."""
    simulations: int = 0
    """Simulations for this move."""
    seldepth: int = 1
    """Longest path in the tree since the last move, plies."""
    full: float = 0.0
    """Share of the tree's memory in use."""

    @property
    def move(self) -> chess.Move:
        """The chosen move."""
        return self.moves[0].move


def win_draw_loss(value: float, draw: float) -> tuple[float, float, float]:
    """Return win, draw and loss, which sum to 1; `value` is win minus loss."""
    draw = min(max(draw, 0.0), 1.0 - abs(value))
    return (1 + value - draw) / 2, draw, (1 - value - draw) / 2


def read_search(
    search: Search,
    board: chess.Board,
    lines: int,
    *,
    slot: int = 0,
    before: int = 0,
    chosen: tuple[int, int],
) -> Play:
    """Return a search's result: `chosen` first, and variations of the best `lines` moves."""
    root, turn = search.root(slot), board.turn
    moves = [
        Line(
            move_of(int(root.labels[index]), int(root.promotions[index]), turn),
            root.value_at(index),
            float(root.draws[index]),
            int(root.visits[index]),
            int(root.mates[index]),
            variation=tuple(_moves_of(search.line(slot, index), turn)) if place < lines else (),
        )
        for place, index in enumerate(root.ranked(root.index_of(*chosen)))
    ]
    wdl = win_draw_loss(root.value, root.draw)
    simulations = max(root.simulations - before, 0)
    return Play(tuple(moves), root.value, wdl, simulations, root.seldepth, root.full)


def _moves_of(line: list[tuple[int, int]], turn: chess.Color) -> Iterator[chess.Move]:
    for label, promotion in line:
        yield move_of(label, promotion, turn)
        turn = not turn
