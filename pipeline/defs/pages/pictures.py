"""Pictures for the UI: PNG and SVG data URIs in markdown, small enough that a page stays quick."""

import base64
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import chess.svg
import numpy as np
from numpy.typing import NDArray
from PIL import Image

from pipeline.evaluation.page.boards import HUMAN, NETWORK, board_of, move_on, san

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INLINE = 1000
"""Characters from which on Dagster's UI (1.13) hides markdown behind a button."""
THUMB, MOST_DRAWN = (160, 32), 32
"""Pixels of a thumbnail, and values that are drawn in it at most."""
WIDEST = 1000
"""Pixels across of a picture in markdown, which has no way to scale one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Drawing:
    """One board: a stored row, and what a network would play there."""

    row: Mapping[str, Any]
    """A row of a shard, by column name."""
    choices: Sequence[tuple[int, float]] = ()
    """The network's first choices: labels in the mover's view with their probabilities."""
    link: str = ""
    """Address of the game, where the dump has one."""


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


def thumbnail(values: Sequence[float], title: str, *, bars: bool = False) -> str:
    """Draw values as a curve, or as bars from 0, so small that Dagster shows the markdown in place and not behind a button.

    Dagster's UI shows markdown of fewer than INLINE characters in place. Of many values only some are drawn.
    """
    if len(values) > MOST_DRAWN:
        values = [values[at * (len(values) - 1) // (MOST_DRAWN - 1)] for at in range(MOST_DRAWN)]
    low, high = (0.0 if bars else min(values, default=0.0)), max(values, default=0.0)
    step, scale = THUMB[0] / max(1, len(values)), (THUMB[1] - 4) / ((high - low) or 1.0)
    places = [
        (round((at + 0.5) * step), round(THUMB[1] - 2 - (value - low) * scale)) for at, value in enumerate(values)
    ]
    if bars:
        path, width = "".join(f"M{x} {THUMB[1]}V{y}" for x, y in places), max(1, int(step) - 1)
    else:
        path, width = "M" + "L".join(f"{x} {y}" for x, y in places or [(0, THUMB[1] // 2)]), 2
    size = f"width='{THUMB[0]}' height='{THUMB[1]}'"
    drawn = f"<path d='{path}' fill='none' stroke='#4c72b0' stroke-width='{width}'/>"
    svg = f"<svg xmlns='http://www.w3.org/2000/svg' {size}>{drawn}</svg>"
    return f"![{title[:80]}](data:image/svg+xml;base64,{base64.b64encode(svg.encode()).decode()})"


def inline(words: str, picture: str) -> str:
    """Put words beside a thumbnail; the words alone where both were too long to be shown in place."""
    both = f"{words[: INLINE // 2]} {picture}"
    return both if len(both) < INLINE else words[: INLINE // 2]


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
    """Draw rows as boards in a markdown table, the human's move green and the network's first choice blue.

    Below each stand move number, ratings, the moves, and a link to the game where there is one.
    """
    cells = [_board(drawing) for drawing in drawings]
    lines = ["| " + " | ".join([" "] * columns) + " |", "|" + "---|" * columns]
    for start in range(0, len(cells), columns):
        group = cells[start : start + columns]
        group += [("", "")] * (columns - len(group))
        lines += ["| " + " | ".join(part) + " |" for part in zip(*group, strict=True)]
    return "\n".join(lines)


def _board(drawing: Drawing) -> tuple[str, str]:
    """Draw one board and write the line under it."""
    row = drawing.row
    board = board_of(np.frombuffer(row["planes"], "<u8"), row["castling"], row["ep_file"], row["ply"], row["halfmove"])
    human = move_on(board, row["label"], row["promotion"])
    arrows = [chess.svg.Arrow(human.from_square, human.to_square, color=HUMAN)]
    who, elo = ("White" if board.turn else "Black"), row.get("elo")
    mover = f"{who} ({elo})" if elo else who
    caption = f"move {row['ply'] // 2 + 1}: {mover} played {san(board, human)}"
    if drawing.choices:
        moves = [(move_on(board, label), share) for label, share in drawing.choices]
        first = moves[0][0]
        arrows.append(chess.svg.Arrow(first.from_square, first.to_square, color=NETWORK))
        caption += "; network: " + ", ".join(f"{san(board, move)} {share:.0%}" for move, share in moves)
    svg = chess.svg.board(board, arrows=arrows, orientation=board.turn, size=220, coordinates=True)
    picture = f"![{caption}](data:image/svg+xml;base64,{base64.b64encode(svg.encode()).decode()})"
    against = f"; against {row['opponent_elo']}" if row.get("opponent_elo") else ""
    return picture, f"{caption}{against}" + (f" [game]({drawing.link})" if drawing.link else "")


def _figure() -> "Figure":
    from matplotlib.figure import Figure

    return Figure(figsize=(7.0, 3.2), dpi=80, layout="constrained")


def _png(figure: "Figure") -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return buffer.getvalue()
