"""curves.png: loss and top-1 accuracy against positions seen."""

from io import BytesIO
from pathlib import Path
from typing import Any

from model.checkpoint import write_atomically
from model.training.metrics_log import read_metrics

NAME = "curves.png"
PANELS = (
    ("policy_loss", "validation_cross_entropy", "policy cross-entropy among legal moves [nats]"),
    ("top1", "validation_top1", "top-1: the human's move is the first choice"),
)


def draw(directory: Path) -> Path | None:
    """Draw a run's curves beside its metrics and return the path, None when it has no metrics yet."""
    entries = read_metrics(directory)
    if not entries:
        return None
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4), dpi=110)
    figure.subplots_adjust(left=0.06, right=0.985, bottom=0.13, top=0.92, wspace=0.15)
    canvas = FigureCanvasAgg(figure)
    for axes, (training, validation, title) in zip(figure.subplots(1, 2), PANELS, strict=True):
        axes.plot(*_series(entries, training), color="tab:blue", alpha=0.6, linewidth=1, label="training")
        axes.plot(
            *_series(entries, validation),
            color="tab:orange",
            marker="o",
            markersize=3,
            label="validation (averaged weights)",
        )
        axes.set_xlabel("positions seen")
        axes.locator_params(axis="x", nbins=6)  # so that long numbers do not touch
        axes.set_title(title, fontsize=10)
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
    picture = BytesIO()
    canvas.print_png(picture)  # type: ignore[no-untyped-call]
    write_atomically(directory / NAME, picture.getvalue())
    return directory / NAME


def _series(entries: list[dict[str, Any]], name: str) -> tuple[list[float], list[float]]:
    points = [(entry["positions"], entry[name]) for entry in entries if name in entry and "positions" in entry]
    return [x for x, _ in points], [y for _, y in points]
