"""Pictures for the UI: files in `datasets/reports/pictures/`, and Markdown that shows them.

Dagster shows Markdown of fewer than 1,000 characters on the page, and hides longer text behind
"[Show Markdown]". Therefore pictures are linked, not embedded.
"""

import hashlib
import io
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.defs.resources import DataFolder
from pipeline.evaluation.charts import decode_board, decode_move, draw_position, format_san
from pipeline.storage.stores import publish_bytes

Row = Mapping[str, Any]
"""A row of a shard, by column name."""
METADATA_PIXELS = 384
"""Width of the metadata on an asset's page, in a window of 1,440 pixels."""
NUM_COLUMNS, BOARD_PIXELS = 2, 165
"""Number of boards side by side, and the width of each in pixels."""
PICTURES_FOLDER = "pictures"
"""Folder in datasets/reports. Files are named by their hash, so older pages still show theirs."""


def publish_picture(content: bytes, suffix: str, title: str = "") -> str:
    """Write a picture, and return Markdown that shows it.

    Markdown cannot scale a PNG, so a PNG must be at most METADATA_PIXELS pixels wide.
    """
    folder = DataFolder().path / "reports" / PICTURES_FOLDER
    name = hashlib.sha256(content).hexdigest()[:12] + suffix
    folder.mkdir(parents=True, exist_ok=True)
    publish_bytes(folder, name, content)
    return f"![{title}](/reports/{PICTURES_FOLDER}/{name})"


def draw_histogram(values: NDArray[Any], title: str, label: str) -> bytes:
    """Draw a histogram of values, one for each player of a game, as a PNG."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(METADATA_PIXELS / 80, 2.8), dpi=80, layout="constrained")
    axes = figure.subplots()
    axes.hist(values, bins=40, color="#4c72b0")
    axes.set(title=title, xlabel=label, ylabel="games")
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return buffer.getvalue()


def make_table(cells: Sequence[tuple[str, str]]) -> str:
    """Publish SVG pictures with captions, and return a Markdown table that shows them."""
    shown = [(publish_picture(drawing.encode(), ".svg"), caption) for drawing, caption in cells]
    lines = ["| " + " | ".join([" "] * NUM_COLUMNS) + " |", "|" + "---|" * NUM_COLUMNS]
    for start in range(0, len(shown), NUM_COLUMNS):
        for line in zip(*shown[start : start + NUM_COLUMNS], strict=True):
            lines.append("| " + " | ".join(line) + " |")
    return "\n".join(lines)


def draw_board(row: Row) -> tuple[str, str]:
    """Draw the position of a shard's row with the move played; return the SVG and its caption."""
    board = decode_board(
        np.frombuffer(row["planes"], "<u8"),
        row["castling"],
        row["ep_file"],
        row["ply"],
        row["halfmove"],
    )
    move = decode_move(board, row["label"], row["promotion"])
    drawing = draw_position({"fen": board.fen(), "played": move.uci(), "rank": 1}, BOARD_PIXELS)
    color, elo = ("White" if board.turn else "Black"), row.get("elo")
    mover = f"{color} ({elo})" if elo else color
    return drawing, f"move {row['ply'] // 2 + 1}: {mover} played {format_san(board, move)}"
