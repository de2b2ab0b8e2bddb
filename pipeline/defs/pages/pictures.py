"""Pictures for the UI: files in `datasets/reports/pictures/`, and Markdown that shows them.

Dagster shows Markdown of fewer than 1,000 characters directly on the page, and hides longer text
behind "[Show Markdown]". So pictures are linked, not embedded.
"""

import hashlib
import io
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.defs.resources import Datasets
from pipeline.evaluation.charts import decode_board, draw_position, format_san, move_from_label
from pipeline.evaluation.render import publish_bytes

Row = Mapping[str, Any]
"""A row of a shard, by column name."""
WIDTH = 384
"""Width in pixels of the metadata on an asset's page, in a window 1,440 pixels wide."""
COLUMNS, BOARD = 2, 165
"""Number of boards side by side, and their size in pixels."""
FOLDER = "pictures"
"""Folder in datasets/reports. Files are named by their hash, so old pages keep working."""


def publish(content: bytes, ending: str, title: str = "") -> str:
    """Write a picture, and return Markdown that shows it.

    Markdown cannot scale a PNG, so it must be at most WIDTH pixels wide.
    """
    folder = Datasets().path / "reports" / FOLDER
    name = hashlib.sha256(content).hexdigest()[:12] + ending
    folder.mkdir(parents=True, exist_ok=True)
    publish_bytes(folder, name, content)
    return f"![{title}](/reports/{FOLDER}/{name})"


def histogram(values: NDArray[Any], title: str, label: str) -> bytes:
    """Draw a histogram as a PNG."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH / 80, 2.8), dpi=80, layout="constrained")
    axes = figure.subplots()
    axes.hist(values, bins=40, color="#4c72b0")
    axes.set(title=title, xlabel=label, ylabel="games")
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return buffer.getvalue()


def table(cells: Sequence[tuple[str, str]]) -> str:
    """Publish SVG pictures, and return a Markdown table of them with their captions."""
    shown = [(publish(drawing.encode(), ".svg"), text) for drawing, text in cells]
    lines = ["| " + " | ".join([" "] * COLUMNS) + " |", "|" + "---|" * COLUMNS]
    for start in range(0, len(shown), COLUMNS):
        for part in zip(*shown[start : start + COLUMNS], strict=True):
            lines.append("| " + " | ".join(part) + " |")
    return "\n".join(lines)


def draw_board(row: Row) -> tuple[str, str]:
    """Draw a shard's row with the move played; return the SVG and its caption."""
    board = decode_board(
        np.frombuffer(row["planes"], "<u8"),
        row["castling"],
        row["ep_file"],
        row["ply"],
        row["halfmove"],
    )
    human = move_from_label(board, row["label"], row["promotion"])
    drawing = draw_position({"fen": board.fen(), "played": human.uci(), "rank": 1}, BOARD)
    color, elo = ("White" if board.turn else "Black"), row.get("elo")
    mover = f"{color} ({elo})" if elo else color
    return drawing, f"move {row['ply'] // 2 + 1}: {mover} played {format_san(board, human)}"
