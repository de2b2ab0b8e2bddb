"""Pictures for the UI: PNG and SVG data URIs in markdown, small enough for a quick page."""

import base64
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import chess.svg
import numpy as np
from numpy.typing import NDArray
from PIL import Image

from pipeline.evaluation.page.boards import HUMAN, NETWORK, board_of, move_on, san

Row = Mapping[str, Any]
"""A row of a shard, by column name."""
Choices = Sequence[tuple[int, float]]
WIDEST = 1000
"""Most pixels across: markdown cannot scale a picture."""


def png(picture: bytes | Path, title: str) -> str:
    """Return a PNG as markdown, scaled down to the width of a page."""
    data = picture.read_bytes() if isinstance(picture, Path) else picture
    with Image.open(io.BytesIO(data)) as image:
        if image.width > WIDEST:
            smaller = image.convert("RGB").resize((WIDEST, image.height * WIDEST // image.width))
            buffer = io.BytesIO()
            smaller.quantize(256).save(buffer, "PNG", optimize=True)
            data = buffer.getvalue()
    return f"![{title}](data:image/png;base64,{base64.b64encode(data).decode()})"


def histogram(values: NDArray[Any], title: str, label: str) -> bytes:
    """Return a histogram as a PNG."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.0, 3.2), dpi=80, layout="constrained")
    axes = figure.subplots()
    axes.hist(values, bins=40, color="#4c72b0")
    axes.set(title=title, xlabel=label, ylabel="games")
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return buffer.getvalue()


def boards(rows: Sequence[Row], choices: Sequence[Choices] = (), columns: int = 3) -> str:
    """Return rows as boards in a markdown table, the human's move in green and the network's first choice in blue.

    `choices` are the labels that a network prefers in each row, in the mover's view, with their probabilities.
    """
    cells = [_draw_board(row, choices[at] if choices else ()) for at, row in enumerate(rows)]
    lines = ["| " + " | ".join([" "] * columns) + " |", "|" + "---|" * columns]
    for start in range(0, len(cells), columns):
        for part in zip(*cells[start : start + columns], strict=True):
            lines.append("| " + " | ".join(part) + " |")
    return "\n".join(lines)


def _draw_board(row: Row, choices: Choices) -> tuple[str, str]:
    """Return the picture of a board and its caption, as markdown."""
    board = board_of(np.frombuffer(row["planes"], "<u8"), row["castling"], row["ep_file"], row["ply"], row["halfmove"])
    human = move_on(board, row["label"], row["promotion"])
    arrows = [chess.svg.Arrow(human.from_square, human.to_square, color=HUMAN)]
    color, elo = ("White" if board.turn else "Black"), row.get("elo")
    mover = f"{color} ({elo})" if elo else color
    caption = f"move {row['ply'] // 2 + 1}: {mover} played {san(board, human)}"
    if choices:
        moves = [(move_on(board, label), share) for label, share in choices]
        first = moves[0][0]
        arrows.append(chess.svg.Arrow(first.from_square, first.to_square, color=NETWORK))
        caption += "; network: " + ", ".join(f"{san(board, move)} {share:.0%}" for move, share in moves)
    svg = chess.svg.board(board, arrows=arrows, orientation=board.turn, size=220, coordinates=True)
    return f"![{caption}](data:image/svg+xml;base64,{base64.b64encode(svg.encode()).decode()})", caption
