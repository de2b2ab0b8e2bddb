"""Charts as inline SVG: matplotlib's, in the colours of the page, so that they follow light and dark."""

import io
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, FAINT, FIRST, SECOND = "#010203", "#040506", "#070809", "#0a0b0c"
VARIABLES = {INK: "var(--ink)", FAINT: "var(--faint)", FIRST: "var(--first)", SECOND: "var(--second)"}
"""Colour that a chart is drawn in -> property of the page's style that it becomes."""

Row = Mapping[str, Any]


def bars(rows: Sequence[Row], value: str = "top1", count: str = "positions", beside: str = "hand_written_top1") -> str:
    """Return a bar for each row with its 95 % interval and count; a mark where the column `beside` is, if rows have it.

    The interval is in `VALUE_low` and `VALUE_high`, or `low` and `high`.
    """
    figure, axes = _figure(0.55 + 0.3 * len(rows))
    places = range(len(rows))
    values = [row[value] for row in rows]
    axes.barh(places, values, 0.62, color=FIRST)
    for place, row in zip(places, rows, strict=True):
        low, high = (row.get(f"{value}_{end}", row.get(end)) for end in ("low", "high"))
        if low is not None and high is not None:
            axes.plot((low, high), (place, place), color=INK, linewidth=1.4, solid_capstyle="butt")
        if row.get(beside) is not None:
            axes.plot((row[beside],) * 2, (place - 0.31, place + 0.31), color=SECOND, linewidth=2.4)
    axes.set_yticks(places, [f"{row['band']}  ({row[count]:,})".replace("$", r"\$") for row in rows])
    axes.invert_yaxis()
    axes.set_xlim(0, 1)
    axes.xaxis.set_major_formatter(lambda share, _: f"{100 * share:.0f} %")
    return _svg(figure)


def reliability(rows: Sequence[Row], said: str, came: str) -> str:
    """Return a reliability diagram: what was expected against what came, with 95 % intervals and counts."""
    figure, axes = _figure(3.4, 4.2)
    axes.plot((0, 1), (0, 1), color=FAINT, linewidth=1)
    for row in rows:
        if row["low"] is not None and row["high"] is not None:
            axes.plot((row["expected"],) * 2, (row["low"], row["high"]), color=INK, linewidth=1.2)
        axes.annotate(
            f"{row['positions']:,}",
            (row["expected"], row["score"]),
            (5, -9 if row["score"] > 0.08 else 3),
            textcoords="offset points",
            fontsize=7,
            color=INK,
        )
    axes.plot([row["expected"] for row in rows], [row["score"] for row in rows], "o-", color=FIRST, markersize=4)
    axes.set(xlim=(0, 1), ylim=(0, 1), xlabel=said, ylabel=came)
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
    """Return a chart as an SVG element: text stays text, and nothing in it depends on the day."""
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    drawn = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "fianchetto", "font.family": "sans-serif"}):
        # not by `savefig`, which draws all of it once more to lay it out
        canvas = FigureCanvasSVG(figure)
        canvas.print_svg(drawn, metadata={"Date": None, "Creator": None, "Format": None, "Type": None})  # type: ignore[no-untyped-call]
    text = drawn.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>|<!--.*?-->", "", text, flags=re.DOTALL)
    text = re.sub(r'(<svg[^>]*?) width="[^"]*" height="[^"]*"', r'\1 class="chart"', text, count=1)
    text = re.sub(r"\s*\n\s*", "\n", text)
    for color, variable in VARIABLES.items():
        text = text.replace(color, variable)
    return text
