"""Pictures for the UI: PNG and SVG data URIs in markdown, small enough that a page stays quick.

Axes: P planes, R rows.
"""

import base64
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import chess
import chess.svg
import numpy as np
from numpy.typing import NDArray
from PIL import Image

from engine.encoding.planes import move_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WIDEST = 1000
"""Pixels across of a picture in markdown, which has no way to scale one."""
HUMAN = "#15781b"
NETWORK = "#003088"


@dataclass(frozen=True, kw_only=True, slots=True)
class Drawing:
    """One board: a stored row, and what a network would play there."""

    row: Mapping[str, Any]
    """A row of a shard, by column name."""
    choices: Sequence[tuple[int, float]] = ()
    """The network's first choices: labels in the mover's view with their probabilities."""


def png(picture: bytes | Path, title: str) -> str:
    """Put a PNG into markdown, no wider than a page's dialog."""
    data = picture.read_bytes() if isinstance(picture, Path) else picture
    with Image.open(io.BytesIO(data)) as image:
        if image.width > WIDEST:
            smaller = image.convert("RGB").resize((WIDEST, image.height * WIDEST // image.width))
            buffer = io.BytesIO()
            smaller.quantize(256).save(buffer, "PNG", optimize=True)
            data = buffer.getvalue()
    return f"![{title}](data:image/png;base64,{base64.b64encode(data).decode()})"


def histogram(values: "NDArray[Any]", title: str, label: str) -> bytes:
    """Draw how often each value occurs, as a PNG."""
    figure = _figure()
    axes = figure.subplots()
    axes.hist(values, bins=40, color="#4c72b0")
    axes.set(title=title, xlabel=label, ylabel="games")
    return _png(figure)


def intervals(bars: Sequence[tuple[str, float, float | None, float | None]], title: str, label: str) -> bytes:
    """Draw a horizontal bar a figure (name, value, lower and upper end of its interval where it has one), as a PNG."""
    figure = _figure()
    figure.set_size_inches(7.0, 1.0 + 0.3 * len(bars))
    axes = figure.subplots()
    names, values, _, _ = zip(*bars, strict=True)
    lower = [0.0 if low is None else max(0.0, value - low) for _, value, low, _ in bars]
    upper = [0.0 if high is None else max(0.0, high - value) for _, value, _, high in bars]
    axes.barh(range(len(bars)), values, xerr=(lower, upper), color="#4c72b0", ecolor="black", capsize=3)
    axes.set_yticks(range(len(bars)), names)
    axes.invert_yaxis()
    axes.set(title=title, xlabel=label)
    return _png(figure)


def boards(drawings: Iterable[Drawing], columns: int = 3) -> str:
    """Draw rows as boards in a markdown table, the human's move green and the network's first choice blue."""
    cells = [_board(drawing) for drawing in drawings]
    lines = ["| " + " | ".join([" "] * columns) + " |", "|" + "---|" * columns]
    for start in range(0, len(cells), columns):
        group = cells[start : start + columns]
        group += [("", "")] * (columns - len(group))
        lines += ["| " + " | ".join(part) + " |" for part in zip(*group, strict=True)]
    return "\n".join(lines)


def board_of(planes_P: NDArray[np.uint64]) -> chess.Board:
    """Set up the pieces of a stored row (mover's view, uint64[77]) on a python-chess board, seen as White sees it."""
    board = chess.Board(None)
    board.turn = not planes_P[12]
    for index in range(12):
        own = index % 2 == 0
        for bit in chess.scan_forward(int(planes_P[index])):
            square = bit ^ 56 if board.turn else bit
            board.set_piece_at(square, chess.Piece(index // 2 + 1, own == board.turn))
    return board


def _board(drawing: Drawing) -> tuple[str, str]:
    """Draw one board and write the line under it."""
    row = drawing.row
    board = board_of(np.frombuffer(row["planes"], "<u8"))
    human = move_of(int(row["label"]), int(row["promotion"]), board.turn)
    arrows = [chess.svg.Arrow(human.from_square, human.to_square, color=HUMAN)]
    who, elo = ("White" if board.turn else "Black"), row.get("elo")
    mover = f"{who} ({elo})" if elo else who
    caption = f"move {row['ply'] // 2 + 1}: {mover} played {_san(board, human)}"
    if drawing.choices:
        moves = [(_move(board, label), share) for label, share in drawing.choices]
        first = moves[0][0]
        arrows.append(chess.svg.Arrow(first.from_square, first.to_square, color=NETWORK))
        caption += "; network: " + ", ".join(f"{_san(board, move)} {share:.0%}" for move, share in moves)
    svg = chess.svg.board(board, arrows=arrows, orientation=board.turn, size=220, coordinates=True)
    return f"![{caption}](data:image/svg+xml;base64,{base64.b64encode(svg.encode()).decode()})", caption


def _move(board: chess.Board, label: int) -> chess.Move:
    """Decode a label, a pawn that reaches the last rank becoming a queen."""
    move = move_of(label, 0, board.turn)
    last = chess.square_rank(move.to_square) in (0, 7)
    if last and board.piece_type_at(move.from_square) == chess.PAWN:
        move.promotion = chess.QUEEN
    return move


def _san(board: chess.Board, move: chess.Move) -> str:
    """Write a move in SAN where the stored pieces allow it; castling and en passant rights are not stored here."""
    if board.piece_type_at(move.from_square) == chess.KING and abs(move.from_square - move.to_square) == 2:
        return "O-O" if move.to_square > move.from_square else "O-O-O"
    return board.san(move) if board.is_pseudo_legal(move) else move.uci()


def _figure() -> "Figure":
    from matplotlib.figure import Figure

    return Figure(figsize=(7.0, 3.2), dpi=80, layout="constrained")


def _png(figure: "Figure") -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return buffer.getvalue()
