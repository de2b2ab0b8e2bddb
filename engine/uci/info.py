"""The protocol's output: `info` lines of a search, made from its root."""

from collections.abc import Callable, Sequence

import chess

from engine.encoding.planes import move_of
from engine.evaluation.score import centipawns
from engine.search import Root


def format_score(value: float, plies: int) -> str:
    """Write a score: `mate` in moves if `plies` to a mate are proven (negative: the mover is mated), else `cp`."""
    if plies:
        return f"mate {(plies + 1) // 2 if plies > 0 else -(-plies // 2)}"
    return f"cp {centipawns(value)}"


def format_wdl(value: float, draw: float) -> str:
    """Write win, draw and loss in thousandths that sum to 1000; `value` is win minus loss."""
    draw = min(max(draw, 0.0), 1.0 - abs(value))
    win = round(500 * (1 + value - draw))
    drawn = min(round(1000 * draw), 1000 - win)
    return f"{win} {drawn} {1000 - win - drawn}"


def format_effort(nodes: int, seconds: float) -> str:
    """Write the cost of a search so far: simulations of this `go`, and seconds since it."""
    return f"nodes {nodes} nps {round(nodes / max(seconds, 1e-3))} time {round(seconds * 1000)}"


def write_moves(line: Sequence[tuple[int, int]], board: chess.Board) -> list[str]:
    """Write a line of (label, promotion) from a position as UCI moves."""
    words, turn = [], board.turn
    for label, promotion in line:
        words.append(move_of(label, promotion, turn).uci())
        turn = not turn
    return words


def format_info(
    root: Root,
    order: Sequence[int],
    line_of: Callable[[int], list[str]],
    cost: str,
    *,
    show_wdl: bool,
) -> list[str]:
    """Write an `info` line for each root move of `order`, best first; `line_of` returns a move's principal variation.

    depth is the length of that variation (as in CrazyAra), since a tree has no single depth. `cost` is from `format_effort`.
    """
    lines = []
    for place, index in enumerate(order, 1):
        value, draw = root.value_at(index), float(root.draws[index])
        words = line_of(index)
        parts = [f"info depth {len(words)} seldepth {max(root.seldepth, len(words))} multipv {place}"]
        parts.append(f"score {format_score(value, int(root.mates[index]))}")
        if show_wdl:
            parts.append(f"wdl {format_wdl(value, draw)}")
        parts.append(f"{cost} hashfull {min(round(1000 * root.full), 1000)} pv {' '.join(words)}")
        lines.append(" ".join(parts))
    return lines
