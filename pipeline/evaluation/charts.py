"""Draw charts and boards as inline SVG in the page's colors, which follow light and dark mode."""

import io
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import chess
import numpy as np
from numpy.typing import NDArray

from engine.board.position import to_board
from engine.encoding.planes import move_of
from pipeline.dataset.files.stored_planes import row_positions

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, FAINT, FIRST, SECOND = "#1c1f24", "#9aa3ad", "#2f6db5", "#d9822b"
VARIABLES = {INK: "ink", FAINT: "faint", FIRST: "first", SECOND: "second"}
"""Maps each color of a chart to the CSS variable that replaces it on the page."""

LEGEND: dict[str, Any] = {"fontsize": 8, "frameon": False, "labelcolor": INK}
HUMAN, NETWORK = "#15781b", "#003088"
"""Colors of arrows: the move played, and the network's first choice."""

Row = Mapping[str, Any]


def draw_accuracy(report: Row, *, on_page: bool = True) -> str:
    """Draw top-1 by the mover's rating, with the baselines and a published result.

    Bands with too few games for an interval are skipped, unless there are no others. With `on_page`
    False, the chart has fixed colors and a fixed size.
    """
    rows = report["slices"]["rating"]
    rows = [row for row in rows if row["top1_low"] is not None] or rows
    figure, axes = _figure(3.0, 7.6 if on_page else 4.0)
    places = range(len(rows))
    axes.plot(places, [row["top1"] for row in rows], "o-", color=FIRST, label="network")
    for place, row in zip(places, rows, strict=True):
        if row["top1_low"] is not None:
            axes.plot((place, place), (row["top1_low"], row["top1_high"]), color=INK, linewidth=1.4)
    classical = [row["hand_written_top1"] for row in rows]
    axes.plot(places, classical, "D", color=SECOND, label="hand-written player")
    axes.axhline(report["chance_top1"], color=FAINT, linestyle="--", label="chance")
    if report["published"] is not None:
        name, share = report["published"]
        axes.axhline(share, color=INK, linestyle=":", label=f"{name}, on its own games")
    bands = [row["band"] for row in rows]
    if not on_page:
        bands = [band.replace("-", "-\n").replace(" ", "\n", 1) for band in bands]
    names = [f"{band}\n({row['positions']:,})" for band, row in zip(bands, rows, strict=True)]
    axes.set_xticks(places, names, fontsize=7 if on_page else 6)
    axes.set_ylim(0, None)
    axes.yaxis.set_major_formatter(lambda share, _: f"{100 * share:.0f} %")
    figure.legend(loc="outside upper center", ncols=4 if on_page else 2, **LEGEND)
    return _svg(figure) if on_page else write_svg(_draw(figure))


def draw_bars(rows: Sequence[Row], whole: float) -> str:
    """Draw a bar of top-1 for each row, with its interval and a mark for the hand-written player.

    Bars whose interval excludes `whole`, the top-1 of all rows, are in color.
    """
    figure, axes = _figure(0.55 + 0.3 * len(rows))
    places = range(len(rows))
    for place, row in zip(places, rows, strict=True):
        low, high = row["top1_low"], row["top1_high"]
        differs = low is not None and not low <= whole <= high
        axes.barh(place, row["top1"], 0.62, color=FIRST if differs else FAINT)
        if low is not None:
            axes.plot((low, high), (place, place), color=INK, linewidth=1.4, solid_capstyle="butt")
        classical = row["hand_written_top1"]
        axes.plot((classical,) * 2, (place - 0.31, place + 0.31), color=SECOND, linewidth=2.4)
    names = [f"{row['band']}  ({row['positions']:,})".replace("$", r"\$") for row in rows]
    axes.set_yticks(places, names)
    axes.invert_yaxis()
    axes.set_xlim(0, 1)
    axes.xaxis.set_major_formatter(lambda share, _: f"{100 * share:.0f} %")
    return _svg(figure)


def draw_reliability(
    rows: Sequence[Row], xlabel: str, ylabel: str, before: Sequence[Row] = ()
) -> str:
    """Draw a reliability diagram: observed against expected, with 95 % intervals and counts.

    `before` has the rows before calibration, which are drawn as a second line.
    """
    figure, axes = _figure(3.4, 4.2)
    axes.plot((0, 1), (0, 1), color=FAINT, linewidth=1)
    if before:
        axes.plot(*_points(before), "D--", color=SECOND, markersize=3, label="before calibration")
        axes.legend(**LEGEND)
    for row in rows:
        x, y = row["expected"], row["score"]
        if row["low"] is not None:
            axes.plot((x, x), (row["low"], row["high"]), color=INK, linewidth=1.2)
        beside = (5, -9 if y > 0.08 else 3)
        style: Any = {"textcoords": "offset points", "fontsize": 7, "color": INK}
        axes.annotate(f"{row['positions']:,}", (x, y), beside, **style)
    axes.plot(*_points(rows), "o-", color=FIRST, markersize=4)
    axes.set(xlim=(0, 1), ylim=(0, 1), xlabel=xlabel, ylabel=ylabel)
    return _svg(figure)


def _points(rows: Sequence[Row]) -> tuple[list[float], list[float]]:
    return [row["expected"] for row in rows], [row["score"] for row in rows]


def draw_training(entries: Sequence[Row]) -> str:
    """Draw top-1 in training and validation against the number of positions trained on."""
    figure, axes = _figure(2.6, 7.6)
    for name, style, color in (("top1", "-", FAINT), ("validation_top1", "o-", FIRST)):
        known = [entry for entry in entries if entry[name] is not None]
        seen, top1 = ([entry[key] for entry in known] for key in ("positions", name))
        axes.plot(seen, top1, style, color=color, label=name.replace("_", " "))
    axes.legend(**LEGEND)
    axes.set_xlabel("positions trained on")
    return _svg(figure)


def _figure(height: float, width: float = 5.6) -> tuple["Figure", "Axes"]:
    """Return an empty chart without a background."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    figure.patch.set_visible(False)
    axes = figure.subplots()
    axes.patch.set_visible(False)
    axes.tick_params(colors=INK, labelsize=8)
    for side in axes.spines.values():
        side.set_color(FAINT)
    for label in (axes.xaxis.label, axes.yaxis.label):
        label.set(color=INK, fontsize=8)
    axes.grid(color=FAINT, linewidth=0.4, alpha=0.5)
    axes.set_axisbelow(True)
    return figure, axes


def _svg(figure: "Figure") -> str:
    """Return a chart as SVG for the page: full width, with the page's colors."""
    drawing = _draw(figure)
    del drawing.attrib["width"], drawing.attrib["height"]
    drawing.set("class", "chart")
    text = write_svg(drawing)
    for color, variable in VARIABLES.items():
        text = text.replace(color, f"var(--{variable})")
    return text


def _draw(figure: "Figure") -> "Element":
    """Return a chart as SVG: text is kept as text, and the output is reproducible (no dates)."""
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    drawn = io.StringIO()
    options: Any = {"svg.fonttype": "none", "svg.hashsalt": "fianchetto"}
    options |= {"font.family": "sans-serif"}
    nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    with matplotlib.rc_context(options):
        # `savefig` would draw everything twice for the layout
        canvas: Any = FigureCanvasSVG(figure)
        canvas.print_svg(drawn, metadata=nothing)
    drawing = parse_svg(drawn.getvalue())
    for group in list(drawing.iter()):  # the SVG's style would apply to the whole page
        for part in [one for one in group if one.tag.endswith(("}metadata", "}style"))]:
            group.remove(part)
    return drawing


def parse_svg(text: str) -> "Element":
    """Parse an SVG generated by matplotlib or python-chess."""
    from xml.etree import ElementTree

    ElementTree.register_namespace("", "http://www.w3.org/2000/svg")
    ElementTree.register_namespace("xlink", "http://www.w3.org/1999/xlink")
    return ElementTree.fromstring(text)  # noqa: S314 - our own libraries made it


def write_svg(element: "Element") -> str:
    """Serialize an SVG element."""
    from xml.etree import ElementTree

    return ElementTree.tostring(element, encoding="unicode")


# ---------------------------------------------------------------- boards


def board_of(
    planes_P: NDArray[np.uint64], castling: int, ep_file: int, ply: int, halfmove: int = 0
) -> chess.Board:
    """Return the board of a stored row: planes, uint64[77], and the columns of the same names."""
    numbers = {"castling": castling, "ep_file": ep_file, "ply": ply, "halfmove": halfmove}
    row = {name: np.array([number]) for name, number in numbers.items()}
    return to_board(row_positions(row | {"planes": planes_P[None]})[0])


def move_from_label(board: chess.Board, label: int, promotion: int = 0) -> chess.Move:
    """Return the move of a label; a pawn promotes to a queen unless `promotion` is given."""
    move = move_of(label, promotion, board.turn)
    last = chess.square_rank(move.to_square) in (0, 7)
    if last and not promotion and board.piece_type_at(move.from_square) == chess.PAWN:
        move.promotion = chess.QUEEN
    return move


def caption(row: Row) -> str:
    """Return a board's caption: the mover, the played move and the network's choice."""
    board = chess.Board(row["fen"])
    played, chosen = (san(board, chess.Move.from_uci(row[name])) for name in ("played", "chosen"))
    number = f"{board.fullmove_number}{'.' if board.turn else '...'}"
    mover = "White" if board.turn else "Black"
    rating = f" ({row['elo']})" if row["elo"] else ""
    first = f"{number} {mover}{rating} played {played} ({row['played_probability']:.1%})"
    return (
        f"{first}; network: {chosen} {row['chosen_probability']:.1%}"
        if row["rank"] > 1
        else f"{first}, its first choice"
    )


def san(board: chess.Board, move: chess.Move) -> str:
    """Return a move in SAN, or in UCI if it is illegal on the stored board."""
    return board.san(move) if board.is_legal(move) else move.uci()


def _arrow(uci: str, color: str) -> "chess.svg.Arrow":
    import chess.svg

    move = chess.Move.from_uci(uci)
    return chess.svg.Arrow(move.from_square, move.to_square, color=color)


def board_svg(row: Row, size: int = 260) -> str:
    """Return a board as SVG: a green arrow for the played move, and a blue one for the network's
    first choice if it differs.
    """
    import chess.svg

    board = chess.Board(row["fen"])
    arrows = [_arrow(row["played"], HUMAN)]
    if row["rank"] > 1:
        arrows.append(_arrow(row["chosen"], NETWORK))
    return chess.svg.board(board, arrows=arrows, orientation=board.turn, size=size)
