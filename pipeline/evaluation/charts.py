"""Draw charts and boards as SVG that takes the page's colors, in light and in dark mode."""

import io
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import chess
import numpy as np
from numpy.typing import NDArray

from engine.board.position import to_board
from engine.encoding.planes import move_from_label
from pipeline.dataset.files.stored_planes import rows_to_positions

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, FAINT = "#1c1f24", "#9aa3ad"
SERIES_COLORS = ("#2f6db5", "#d9822b", "#2e9466", "#9a63c4", "#c2527e", "#5f7d00")
"""Colors of networks or runs, in order; they repeat after the last one."""
FIRST_COLOR, SECOND_COLOR, *_ = SERIES_COLORS
CSS_VARIABLES = {INK: "ink", FAINT: "faint"} | {
    color: f"series-{number}" for number, color in enumerate(SERIES_COLORS, 1)
}
"""CSS variable that replaces each color of a chart on the page."""
TRAINING_PANELS = (
    ("top1", "validation_top1", "top-1"),
    ("policy_loss", "validation_cross_entropy", "cross-entropy [nats]"),
)
"""Panels of the training curves: metric of training batches, metric of validations, axis label."""
CURVE_METRICS = ("positions", *(name for panel in TRAINING_PANELS for name in panel[:2]))
"""Entries of a training log that the curves need."""

CHART_WIDTHS = {True: 4.4, False: 4.0}
"""Width of a chart in inches: on the page (True), where it is scaled to fit, and elsewhere."""
LEGEND_STYLE: dict[str, Any] = {"fontsize": 9, "frameon": False, "labelcolor": INK}
NBSP = "\N{NO-BREAK SPACE}"
PLAYED_COLOR, NETWORK_COLOR, REFERENCE_COLOR = "#15781b", "#003088", "#c2600f"
"""Colors of the arrows on boards: the move played, and the first choices of the network and of the
network that it is compared with."""

Row = Mapping[str, Any]


def draw_bars(
    groups: Mapping[str, Sequence[Row]], average: float | None = None, *, on_page: bool = True
) -> str:
    """Draw a bar of top-1 with its interval for each band and network; return the SVG.

    `groups` has the rows of each network by name, of the same bands (`figures.summarize_group`).
    Bands with too few games for an interval are skipped, unless there are no others. Diamonds mark
    the hand-written player's top-1. The axis covers the values, not 0 to 100 %. With `average`, the
    top-1 of all positions, bars without an interval, or whose interval includes it, are gray.
    Without `on_page`, the chart has fixed colors and a fixed size.
    """
    groups = {
        name: [row for row in rows if row["top1_low"] is not None] or rows
        for name, rows in groups.items()
    }
    bands = next(iter(groups.values()))
    thick, places = 0.84 / len(groups), np.arange(len(bands))
    hand_written = [row["hand_written_top1"] for row in bands]
    ends = list(hand_written)
    figure, axes = _make_figure(
        0.75 + len(bands) * (0.14 + 0.17 * len(groups)), CHART_WIDTHS[on_page]
    )
    for number, rows in enumerate(groups.values()):
        color = SERIES_COLORS[number % len(SERIES_COLORS)]
        for y, row in zip(places + (number - (len(groups) - 1) / 2) * thick, rows, strict=True):
            top1, low, high = row["top1"], row["top1_low"], row["top1_high"]
            is_usual = average is not None and (low is None or low <= average <= high)
            axes.barh(y, top1, 0.9 * thick, color=FAINT if is_usual else color)
            if low is not None:
                axes.plot((low, high), (y, y), color=INK, linewidth=1.3, solid_capstyle="butt")
            style: Any = {"va": "center", "fontsize": 8, "color": INK}
            beside = (high or top1, y)
            axes.annotate(f"{100 * top1:.1f}", beside, (4, 0), "data", "offset points", **style)
            ends += [top1, low or top1, high or top1]
    axes.plot(hand_written, places, "D", color=INK, markersize=3.5)
    axes.set_yticks(
        places, [f"{_escape_formula(row['band'])}\n({row['positions']:,})" for row in bands]
    )
    axes.set_ylim(len(bands) - 0.5, -0.5)
    room = 0.15 * (max(ends) - min(ends)) + 0.01  # space for the last bar's label
    axes.set_xlim(max(0.0, min(ends) - 0.03), max(ends) + room)
    axes.xaxis.set_major_formatter(lambda share, _: f"{100 * share:.0f} %" if share < 1.01 else "")
    if len(groups) > 1:
        _add_legend(figure, groups)
    return _to_svg(figure, on_page)


def _add_legend(figure: "Figure", names: Iterable[str]) -> None:
    from matplotlib.patches import Patch

    patches = [
        Patch(color=SERIES_COLORS[number % len(SERIES_COLORS)], label=_escape_formula(name))
        for number, name in enumerate(names)
    ]
    figure.legend(handles=patches, loc="outside upper left", ncols=2, **LEGEND_STYLE)


def _escape_formula(text: str) -> str:
    """Escape a text that matplotlib would read as a formula."""
    return text.replace("$", r"\$")


def draw_reliability(
    rows: Sequence[Row], xlabel: str, ylabel: str, before: Sequence[Row] = ()
) -> str:
    """Draw a reliability diagram: observed against expected, with 95 % intervals and counts.

    `rows` are from `figures.bin_reliability`; `before` has the rows before calibration, which are
    drawn as a second line.
    """
    figure, axes = _make_figure(3.6, CHART_WIDTHS[True])
    axes.plot((0, 1), (0, 1), color=FAINT, linewidth=1)
    if before:
        points = [[row[name] for row in before] for name in ("expected", "score")]
        axes.plot(*points, "D--", color=SECOND_COLOR, markersize=3, label="before calibration")
        axes.legend(**LEGEND_STYLE)
    for row in rows:
        x, y = row["expected"], row["score"]
        if row["low"] is not None:
            axes.plot((x, x), (row["low"], row["high"]), color=INK, linewidth=1.2)
        beside = (5, -9 if y > 0.08 else 3)
        style: Any = {"textcoords": "offset points", "fontsize": 8, "color": INK}
        axes.annotate(f"{row['positions']:,}", (x, y), beside, **style)
    points = [[row[name] for row in rows] for name in ("expected", "score")]
    axes.plot(*points, "o-", color=FIRST_COLOR, markersize=4)
    axes.set(xlim=(0, 1), ylim=(0, 1), xlabel=xlabel, ylabel=ylabel)
    return _to_svg(figure)


def draw_training(runs: Mapping[str, Sequence[Row]], *, on_page: bool = True) -> str:
    """Draw top-1 and cross-entropy against the positions trained on, for several runs by name.

    `runs` has the entries of their training logs. Lines are training batches, dots are validations.
    """
    figure, first = _make_figure(4.6, CHART_WIDTHS[on_page], panels=2)
    for axes, (training, validation, label) in zip(figure.axes, TRAINING_PANELS, strict=True):
        for number, entries in enumerate(runs.values()):
            color = SERIES_COLORS[number % len(SERIES_COLORS)]
            for name, style, alpha in ((training, "-", 0.45), (validation, "o-", 1.0)):
                known = [entry for entry in entries if entry.get(name) is not None]
                points = [[entry[key] for entry in known] for key in ("positions", name)]
                axes.plot(*points, style, color=color, alpha=alpha, markersize=3.5)
        axes.set_ylabel(label)
    first.tick_params(labelbottom=False)
    figure.axes[-1].set_xlabel("positions trained on")
    figure.axes[-1].xaxis.set_major_formatter(lambda count, _: f"{count:,.0f}")
    figure.axes[-1].locator_params(axis="x", nbins=5)
    _add_legend(figure, runs)
    return _to_svg(figure, on_page)


def _make_figure(height: float, width: float, panels: int = 1) -> tuple["Figure", "Axes"]:
    """Return an empty chart without a background, and its first panel."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    figure.patch.set_visible(False)
    for axes in figure.subplots(panels, 1, sharex=True, squeeze=False).flat:
        axes.patch.set_visible(False)
        axes.tick_params(colors=INK, labelsize=9)
        for side in axes.spines.values():
            side.set_color(FAINT)
        for label in (axes.xaxis.label, axes.yaxis.label):
            label.set(color=INK, fontsize=9)
        axes.grid(color=FAINT, linewidth=0.4, alpha=0.5)
        axes.set_axisbelow(True)
    return figure, figure.axes[0]


def _to_svg(figure: "Figure", on_page: bool = True) -> str:
    """Return a chart as SVG, the same bytes on every call; text is stored as text, not as paths.

    With `on_page`, it takes the full width and the page's colors.
    """
    from xml.etree import ElementTree

    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    drawn = io.StringIO()
    options: Any = {"svg.fonttype": "none", "svg.hashsalt": "fianchetto"}
    options |= {"font.family": "sans-serif"}
    nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    with matplotlib.rc_context(options):
        # print directly: `savefig` would draw everything twice to compute the layout
        canvas: Any = FigureCanvasSVG(figure)
        canvas.print_svg(drawn, metadata=nothing)
    ElementTree.register_namespace("", "http://www.w3.org/2000/svg")
    ElementTree.register_namespace("xlink", "http://www.w3.org/1999/xlink")
    drawing = ElementTree.fromstring(drawn.getvalue())  # noqa: S314 - matplotlib made it
    for group in list(drawing.iter()):  # remove styles, which would apply to the whole page
        for part in [child for child in group if child.tag.endswith(("}metadata", "}style"))]:
            group.remove(part)
    if not on_page:
        return ElementTree.tostring(drawing, encoding="unicode")
    del drawing.attrib["width"], drawing.attrib["height"]
    drawing.set("class", "chart")
    text = ElementTree.tostring(drawing, encoding="unicode")
    for color, variable in CSS_VARIABLES.items():
        text = text.replace(color, f"var(--{variable})")
    return text


# ---------------------------------------------------------------- boards


def decode_board(
    planes_P: NDArray[np.uint64], castling: int, ep_file: int, ply: int, halfmove: int = 0
) -> chess.Board:
    """Return the board of a dataset's row, from its planes (uint64[77]) and its other columns."""
    numbers = {"castling": castling, "ep_file": ep_file, "ply": ply, "halfmove": halfmove}
    row = {name: np.array([number]) for name, number in numbers.items()}
    return to_board(rows_to_positions(row | {"planes": planes_P[None]})[0])


def decode_move(board: chess.Board, label: int, promotion: int = 0) -> chess.Move:
    """Return the move with a label (0 to 4095) and a promotion, both as in a dataset's row.

    With `promotion` 0, a pawn that reaches the last rank becomes a queen.
    """
    move = move_from_label(label, promotion, board.turn)
    is_last_rank = chess.square_rank(move.to_square) in (0, 7)
    if is_last_rank and not promotion and board.piece_type_at(move.from_square) == chess.PAWN:
        move.promotion = chess.QUEEN
    return move


def make_caption(row: Row, name: str = "the network", reference: str = "") -> str:
    """Return the caption of a board: the player, the move played, and the networks' choices.

    `row` is from `measure.describe_position`.
    """
    board = chess.Board(row["fen"])
    played = format_san(board, chess.Move.from_uci(row["played"]))
    number = f"{board.fullmove_number}{'.' if board.turn else '...'}{NBSP}"
    mover = "White" if board.turn else "Black"
    rating = f" ({row['elo']})" if row["elo"] else ""
    choices = f"{name} {_describe_choice(board, row, played)}"
    if "reference" in row:
        choices += f", {reference} {_describe_choice(board, row['reference'], played)}"
    return f"{mover}{rating} played {number}{played}; {choices}"


def _describe_choice(board: chess.Board, choice: Row, played: str) -> str:
    """Return the move that a network expected, and its probability of the move played."""
    likely, most = (
        f"{100 * choice[f'{move}_probability']:.0f}{NBSP}%" for move in ("played", "chosen")
    )
    if choice["rank"] == 1:
        return f"expected it ({likely})"
    chosen = format_san(board, chess.Move.from_uci(choice["chosen"]))
    return f"expected {chosen} ({most}, against {likely} for {played})"


def format_san(board: chess.Board, move: chess.Move) -> str:
    """Return a move in SAN, or in UCI if it is illegal on the stored board."""
    return board.san(move) if board.is_legal(move) else move.uci()


def draw_position(row: Row, size: int = 260) -> str:
    """Draw a board with arrows, seen by the side to move; return the SVG, `size` pixels wide.

    The move played has a green arrow. If a network's first choice is another move, it has an arrow
    too: blue for the network, orange for the reference. `row` is from `measure.describe_position`.
    """
    import chess.svg

    drawn = [(row["played"], PLAYED_COLOR)]
    drawn += [
        (choice["chosen"], color)
        for choice, color in ((row, NETWORK_COLOR), (row.get("reference"), REFERENCE_COLOR))
        if choice is not None and choice["rank"] > 1
    ]
    arrows = [
        chess.svg.Arrow(chess.parse_square(uci[:2]), chess.parse_square(uci[2:4]), color=color)
        for uci, color in drawn
    ]
    board = chess.Board(row["fen"])
    return chess.svg.board(board, arrows=arrows, orientation=board.turn, size=size)
