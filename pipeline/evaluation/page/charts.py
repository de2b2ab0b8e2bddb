"""Charts as inline SVG in the colors of the page, so that they follow light and dark mode."""

import io
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, FAINT, FIRST, SECOND = "#1c1f24", "#9aa3ad", "#2f6db5", "#d9822b"
VARIABLES = {
    INK: "var(--ink)",
    FAINT: "var(--faint)",
    FIRST: "var(--first)",
    SECOND: "var(--second)",
}
"""Color that a chart is drawn in, that of light pages -> property of the page's style that it
becomes."""

Row = Mapping[str, Any]


def draw_accuracy(report: Row, *, on_page: bool = True) -> str:
    """Draw top-1 by the mover's rating, beside the baselines and a published figure.

    Bands of too few games for an interval are left out, if there are others. Outside of a page it
    has fixed colors and a size.
    """
    rows = report["slices"]["rating"]
    rows = [row for row in rows if row["top1_low"] is not None] or rows
    figure, axes = _figure(3.0, 7.6 if on_page else 4.0)
    places = range(len(rows))
    axes.plot(places, [row["top1"] for row in rows], "o-", color=FIRST, label="network")
    for place, row in zip(places, rows, strict=True):
        if row["top1_low"] is not None:
            axes.plot((place, place), (row["top1_low"], row["top1_high"]), color=INK, linewidth=1.4)
    axes.plot(
        places,
        [row["hand_written_top1"] for row in rows],
        "D",
        color=SECOND,
        label="hand-written player",
    )
    axes.axhline(report["chance_top1"], color=FAINT, linestyle="--", label="chance")
    if report["published"] is not None:
        name, share = report["published"]
        axes.axhline(share, color=INK, linestyle=":", label=f"{name}, on its own games")
    bands = [
        row["band"] if on_page else row["band"].replace("-", "-\n").replace(" ", "\n", 1)
        for row in rows
    ]
    names = [f"{band}\n({row['positions']:,})" for band, row in zip(bands, rows, strict=True)]
    axes.set_xticks(places, names, fontsize=7 if on_page else 6)
    axes.set_ylim(0, None)
    axes.yaxis.set_major_formatter(lambda share, _: f"{100 * share:.0f} %")
    figure.legend(
        loc="outside upper center",
        ncols=4 if on_page else 2,
        fontsize=8,
        frameon=False,
        labelcolor=INK,
    )
    return _svg(figure) if on_page else _draw(figure)


def draw_bars(rows: Sequence[Row], whole: float) -> str:
    """Draw a bar of top-1 for each row, with its interval and the hand-written player's mark.

    A bar is in color where its interval excludes `whole`, top-1 of all rows.
    """
    figure, axes = _figure(0.55 + 0.3 * len(rows))
    places = range(len(rows))
    for place, row in zip(places, rows, strict=True):
        low, high = row["top1_low"], row["top1_high"]
        differs = low is not None and not low <= whole <= high
        axes.barh(place, row["top1"], 0.62, color=FIRST if differs else FAINT)
        if low is not None:
            axes.plot((low, high), (place, place), color=INK, linewidth=1.4, solid_capstyle="butt")
        axes.plot(
            (row["hand_written_top1"],) * 2,
            (place - 0.31, place + 0.31),
            color=SECOND,
            linewidth=2.4,
        )
    axes.set_yticks(
        places, [f"{row['band']}  ({row['positions']:,})".replace("$", r"\$") for row in rows]
    )
    axes.invert_yaxis()
    axes.set_xlim(0, 1)
    axes.xaxis.set_major_formatter(lambda share, _: f"{100 * share:.0f} %")
    return _svg(figure)


def draw_reliability(
    rows: Sequence[Row], xlabel: str, ylabel: str, before: Sequence[Row] = ()
) -> str:
    """Return a reliability diagram: observed over expected, with 95 % intervals and counts.

    `before` are the rows of the same value before calibration, drawn as a second line.
    """
    figure, axes = _figure(3.4, 4.2)
    axes.plot((0, 1), (0, 1), color=FAINT, linewidth=1)
    if before:
        points = [row["expected"] for row in before], [row["score"] for row in before]
        axes.plot(
            *points, "D--", color=SECOND, markersize=3, linewidth=1, label="before calibration"
        )
        axes.legend(fontsize=8, frameon=False, labelcolor=INK)
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
    axes.plot(
        [row["expected"] for row in rows],
        [row["score"] for row in rows],
        "o-",
        color=FIRST,
        markersize=4,
    )
    axes.set(xlim=(0, 1), ylim=(0, 1), xlabel=xlabel, ylabel=ylabel)
    return _svg(figure)


def draw_training(entries: Sequence[Row]) -> str:
    """Draw top-1 of training and validation over the positions seen."""
    figure, axes = _figure(2.6, 7.6)
    for name, style, color in (("top1", "-", FAINT), ("validation_top1", "o-", FIRST)):
        known = [(entry["positions"], entry[name]) for entry in entries if entry[name] is not None]
        axes.plot(
            [x for x, _ in known],
            [y for _, y in known],
            style,
            color=color,
            label=name.replace("_", " "),
        )
    axes.legend(fontsize=8, frameon=False, labelcolor=INK)
    axes.set_xlabel("positions seen")
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
    """Return a chart as an SVG element of the page: as wide as its place, in the page's colors."""
    text = re.sub(
        r'(<svg[^>]*?) width="[^"]*" height="[^"]*"', r'\1 class="chart"', _draw(figure), count=1
    )
    for color, variable in VARIABLES.items():
        text = text.replace(color, variable)
    return text


def _draw(figure: "Figure") -> str:
    """Return a chart as an SVG element: text stays text, and nothing in it depends on the day."""
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    drawn = io.StringIO()
    with matplotlib.rc_context(
        {"svg.fonttype": "none", "svg.hashsalt": "fianchetto", "font.family": "sans-serif"}
    ):
        # not by `savefig`, which draws all of it once more to lay it out
        canvas = FigureCanvasSVG(figure)
        canvas.print_svg(
            drawn, metadata={"Date": None, "Creator": None, "Format": None, "Type": None}
        )  # type: ignore[no-untyped-call]
    text = drawn.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(
        r"<metadata>.*?</metadata>|<style.*?</style>|<!--.*?-->", "", text, flags=re.DOTALL
    )
    return re.sub(r"\s*\n\s*", "\n", text)
