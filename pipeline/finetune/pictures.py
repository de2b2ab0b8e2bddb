"""Pictures of a loop: its curves as PNG, and sample games as boards (SVG) with their PGN."""

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import chess
import chess.pgn
import chess.svg

from pipeline.dataset.files.shards import publish
from pipeline.evaluation.page.games import games_page, read_games

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SAMPLES = "samples.pgn"
VIEWER = "samples.html"
BOARDS = "samples.svg"
SIDE = 220
"""Pixels across of a board."""

Row = Mapping[str, Any]


def draw_curves(rows: Sequence[Row]) -> bytes:
    """Draw the curves over generations as a PNG; `rows` are those of generations.csv, the seed's first."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 6.5), dpi=100, layout="constrained")
    panels = figure.subplots(2, 4)
    _elo(panels[0, 0], rows)
    for axes, (title, names) in zip(panels.flat[1:], PANELS.items(), strict=True):
        for name in names:
            points = [(one["generation"], one[name]) for one in rows if one.get(name) is not None]
            axes.plot(*zip(*points, strict=True) if points else ((), ()), marker="o", label=name.replace("_", " "))
        axes.set_title(title, fontsize=9)
        if len(names) > 1:
            axes.legend(fontsize=7)
    for axes in panels[1]:
        axes.set_xlabel("generation", fontsize=8)
    return _finished(figure, rows)


def draw_elo(rows: Sequence[Row]) -> bytes:
    """Draw the one picture that tells the story, as a PNG: Elo against the supervised seed by generation."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), dpi=110, layout="constrained")
    axes = figure.subplots()
    _elo(axes, rows)
    axes.set_xlabel("generation")
    axes.set_ylabel("Elo")
    return _finished(figure, rows)


def _finished(figure: "Figure", rows: Sequence[Row]) -> bytes:
    """Set the axes of generations and return the figure as a PNG."""
    for axes in figure.axes:
        axes.grid(alpha=0.3)
        axes.locator_params(axis="x", integer=True)
        axes.set_xlim(-0.4, max(1, len(rows) - 1) + 0.4)
    drawn = io.BytesIO()
    figure.savefig(drawn, format="png")
    return drawn.getvalue()


PANELS: Mapping[str, tuple[str, ...]] = {
    "human top-1": ("top1",),
    "KL to the seed on human positions [nats]": ("kl_seed",),
    "self-play games": ("games",),
    "decisive share": ("decisive_share",),
    "mean length [half-moves]": ("mean_plies",),
    "resignations": ("resignations", "played_on", "false_resignations"),
    "human cross-entropy [nats]": ("cross_entropy",),
}
"""Curves beside the Elo: title, and columns of generations.csv."""


def _elo(axes: "Axes", rows: Sequence[Row]) -> None:
    """Draw Elo against the seed with its 95 % interval, of every generation that met the seed; crosses are the others."""
    styles = {"promoted": ("o", "tab:blue"), "undone": ("s", "tab:red")}
    for verdict, (marker, colour) in styles.items():
        met = [one for one in rows if one["verdict"] == verdict and one["seed_elo"] is not None]
        if met:
            elo = [one["seed_elo"] for one in met]
            below = [max(0.0, one["seed_elo"] - one["seed_elo_low"]) for one in met]
            above = [max(0.0, one["seed_elo_high"] - one["seed_elo"]) for one in met]
            numbers = [one["generation"] for one in met]
            axes.errorbar(numbers, elo, [below, above], fmt=marker, color=colour, capsize=3, label=verdict)
    best = [one for one in rows if one["verdict"] == "promoted" and one["seed_elo"] is not None]
    axes.plot([one["generation"] for one in best], [one["seed_elo"] for one in best], color="tab:blue", alpha=0.5)
    turned = [one["generation"] for one in rows if one["verdict"] == "rejected"]
    if turned:
        low = axes.get_xaxis_transform()
        axes.plot(turned, [0.04] * len(turned), "x", color="0.5", transform=low, label="rejected at the gate")
    axes.axhline(0.0, color="0.7", linewidth=1)
    axes.set_title("Elo against the supervised seed, 95 %", fontsize=9)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize=7)


def write_samples(games: Path, out: Path, count: int = 4) -> None:
    """Keep the first games of a PGN file in `out`: their text, a page to click through, and the boards that they ended on."""
    found = read_games(games, count)
    if not found:
        return
    out.mkdir(parents=True, exist_ok=True)
    texts = [game.accept(chess.pgn.StringExporter(columns=80)) for game in found]
    files = {
        SAMPLES: "".join(f"{text}\n\n" for text in texts).encode(),
        VIEWER: games_page("Games of self-play", found),
        BOARDS: draw_boards(found).encode(),
    }
    for name, data in files.items():
        publish(out, name, 0, lambda target, data=data: target.write(data))  # type: ignore[misc]


def playable(game: chess.pgn.Game) -> str:
    """Return an address of Lichess at which a game can be played through; "" for one from a position of its own."""
    if "FEN" in game.headers:
        return ""
    board, moves = game.board(), []
    for move in game.mainline_moves():
        moves.append(board.san_and_push(move))
    return f"https://lichess.org/analysis/pgn/{quote('_'.join(moves), safe='')}"


def draw_boards(games: Sequence[chess.pgn.Game]) -> str:
    """Draw the last positions of games side by side as one SVG, the last move marked, result and length under each."""
    parts = []
    for index, game in enumerate(games):
        end = game.end()
        board = end.board()
        drawn = chess.svg.board(board, lastmove=end.move, size=SIDE, coordinates=True)
        parts.append(f'<g transform="translate({index * (SIDE + 10)} 0)">{drawn}')
        caption = f"{game.headers.get('Result', '*')}, {board.ply()} half-moves"
        parts.append(f'<text x="4" y="{SIDE + 16}" font-family="sans-serif" font-size="13">{caption}</text></g>')
    size = f'width="{len(games) * (SIDE + 10)}" height="{SIDE + 24}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" {size}>'
    return head + "".join(parts) + "</svg>"
