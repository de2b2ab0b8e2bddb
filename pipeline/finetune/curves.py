"""curves.png: the curves of a loop, its Elo over the hours of searches and training, the rest over
its generations.
"""

import io
import math
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PANELS: Mapping[str, str] = {
    "top1": "human top-1",
    "cross_entropy": "human cross-entropy [nats]",
    "value_brier": "Brier score of the value in human games",
    "decisive_share": "decisive share of games",
    "mean_plies": "mean length of games [half-moves]",
}
"""Curves beside the Elo: column of generations.csv, and title. Those of games are left out where
none were played."""
COLUMNS = 2
ARROW = 50.0
"""Length in Elo of an arrow from a bound: more is possible."""

WORK = ("explore", "train")
"""Stages whose time is counted."""


def draw_curves(rows: Sequence[Mapping[str, Any]]) -> bytes:
    """Return the curves over generations as a PNG; `rows` are those of generations.csv, the
    supervised network's first.
    """
    from matplotlib.figure import Figure

    curves = {
        name: [(row["generation"], row[name]) for row in rows if row.get(name) is not None]
        for name in PANELS
    }
    curves = {name: points for name, points in curves.items() if points}
    lines = math.ceil((1 + len(curves)) / COLUMNS)
    figure = Figure(figsize=(9, 3 * lines), dpi=90, layout="constrained")
    panels = [figure.add_subplot(lines, COLUMNS, place) for place in range(1, 2 + len(curves))]
    _draw_elo(panels[0], rows)
    for axes, (name, points) in zip(panels[1:], curves.items(), strict=True):
        axes.plot(*zip(*points, strict=True), marker="o")
        axes.set_title(PANELS[name], fontsize=9)
        axes.set_xlabel("generation", fontsize=8)
        axes.locator_params(axis="x", integer=True)
        axes.set_xlim(-0.4, max(1, len(rows) - 1) + 0.4)
    for axes in panels:
        axes.grid(alpha=0.3)
    drawn = io.BytesIO()
    figure.savefig(drawn, format="png")
    return drawn.getvalue()


def _draw_elo(axes: "Axes", rows: Sequence[Mapping[str, Any]]) -> None:
    """Draw Elo with its 95 % interval, or the bound, over the hours, for every generation that
    played the supervised network.

    The hours are those of searches and training of all generations so far, rejected ones included;
    matches are left out.
    """
    hours = list(
        accumulate(sum(row.get(f"seconds_{one}") or 0.0 for one in WORK) / 3600 for row in rows)
    )
    rows = [{**row, "hours": spent} for row, spent in zip(rows, hours, strict=True)]
    shift = 0.01 * max(hours, default=0.0)
    for verdict, (marker, colour) in {
        "promoted": ("o", "tab:blue"),
        "undone": ("s", "tab:red"),
    }.items():
        _draw_matches(
            axes,
            [row for row in rows if row["verdict"] == verdict],
            "seed",
            marker,
            colour,
            verdict,
        )
    _draw_matches(axes, rows, "control", "^", "tab:orange", "against human rows alone", shift)
    rejected = [row["hours"] for row in rows if row["verdict"] == "rejected"]
    if rejected:
        bottom = axes.get_xaxis_transform()
        axes.plot(
            rejected,
            [0.04] * len(rejected),
            "x",
            color="0.5",
            transform=bottom,
            label="rejected at the gate",
        )
    axes.axhline(0.0, color="0.7", linewidth=1)
    axes.set_title("Elo against the supervised network and a control, 95 %", fontsize=9)
    axes.set_xlabel("hours of searches and training", fontsize=8)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize=7)


def _draw_matches(
    axes: "Axes",
    rows: Sequence[Mapping[str, Any]],
    name: str,
    marker: str,
    colour: str,
    label: str,
    shift: float = 0.0,
) -> None:
    """Draw the Elo of matches against `name`; after a clean sweep an arrow from the one end of the
    interval that is known.
    """
    ends = [f"{name}_elo_low", f"{name}_elo", f"{name}_elo_high"]
    for row in rows:
        low, elo, high = (row.get(end) for end in ends)
        known = next((end for end in (elo, low, high) if end is not None), None)
        if known is None:
            continue
        bar = [[ARROW], [ARROW]] if elo is None else [[max(0.0, elo - low)], [max(0.0, high - elo)]]
        place, only_low, only_high = row["hours"] + shift, high is None, low is None
        axes.errorbar(
            place,
            known,
            bar,
            fmt=marker,
            color=colour,
            capsize=3,
            label=label,
            lolims=only_low,
            uplims=only_high,
        )
        label = ""  # one entry in the legend
