"""Result of a player: the legal moves as python-chess moves, with their evaluations."""

from collections.abc import Iterator
from dataclasses import dataclass

import chess

from engine.encoding.planes import move_from_label
from engine.search import Search


@dataclass(frozen=True, slots=True)
class Line:
    """A legal move and its evaluation, from the mover's view."""

    move: chess.Move
    value: float
    """Win minus loss after the move, -1 to 1; that of the position if the move was not searched."""
    draw: float
    """Probability of a draw after the move, or in the position if the move was not searched."""
    visits: int = 0
    """Visits of the move; 0 without a search for the best move."""
    mate: int = 0
    """Plies to a proven mate, including this move: positive if the mover mates; 0 for none."""
    share: float = 0.0
    """Policy probability at temperature 1; 0 after a search for the best move."""
    variation: tuple[chess.Move, ...] = ()
    """Principal variation from this move on; after a search, empty unless `Request.lines` asks for
    it; without a search, only the move."""


@dataclass(frozen=True, slots=True)
class Play:
    """A chosen move and the evaluations behind it, from the mover's point of view."""

    moves: tuple[Line, ...]
    """The allowed moves, the chosen one first; a policy has one move for the four promotions."""
    value: float
    """Win minus loss of the position, -1 to 1."""
    wdl: tuple[float, float, float]
    """Probabilities of win, draw, loss of the position."""
    simulations: int = 0
    """Simulations for this move."""
    seldepth: int = 1
    """Maximum depth in the tree since the last move, in plies."""
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


def read_play(
    search: Search,
    board: chess.Board,
    lines: int,
    *,
    slot: int = 0,
    before: int = 0,
    chosen: tuple[int, int],
) -> Play:
    """Return the result of a search as a Play, with variations of the best `lines` moves.

    `chosen` is the (label, promotion) of the chosen move, and `before` the number of simulations
    that the tree had before this search.
    """
    root, turn = search.root(slot), board.turn
    moves = [
        Line(
            move_from_label(int(root.labels[index]), int(root.promotions[index]), turn),
            root.value_at(index),
            float(root.draws[index]),
            int(root.visits[index]),
            int(root.mates[index]),
            variation=tuple(_read_moves(search.line(slot, index), turn)) if place < lines else (),
        )
        for place, index in enumerate(root.rank_moves(root.index_of(*chosen)))
    ]
    wdl = win_draw_loss(root.value, root.draw)
    simulations = max(root.simulations - before, 0)
    return Play(tuple(moves), root.value, wdl, simulations, root.seldepth, root.full)


def _read_moves(line: list[tuple[int, int]], turn: chess.Color) -> Iterator[chess.Move]:
    for label, promotion in line:
        yield move_from_label(label, promotion, turn)
        turn = not turn
