"""Write an audit as text, as Markdown and as a picture."""

import io
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.dataset.training_set import ALL_SPLITS
from pipeline.errors import ConfigError
from pipeline.evaluation.render import publish_result, text_table
from pipeline.ingest.data_card import markdown_table
from pipeline.storage.job_folder import AUDIT, JobFolder

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Rows = list[dict[str, Any]]


def sections(result: Mapping[str, Any]) -> list[tuple[str, str, Rows]]:
    """Return the title, sentence and table of each section of an audit, in their order."""
    copies, games = result["copies"], result["games"]
    games_in_train = ", ".join(
        f"{games[f'{name}_games_in_train']:,} of {name}" for name in ALL_SPLITS[1:]
    )
    return [
        ("Datasets", "", result["datasets"]),
        (
            "Copies of positions",
            f"{copies['copies']:,} of {copies['positions']:,} positions "
            f"({copies['copies_share']:.2%}) are copies of others; "
            f"{copies['distinct']:,} are distinct. Where a position occurs more than once, its "
            f"most played move is "
            f"{copies['most_played_move_share_there']:.2%} of the moves played there.",
            [],
        ),
        (
            "Test positions that occur in train",
            "All positions were compared, by 64-bit keys.",
            result["in_train"],
        ),
        (
            "Games",
            f"{games['copies']:,} of {games['games']:,} games have the moves of another. Games "
            f"whose moves occur in train: "
            f"{games_in_train}.",
            [],
        ),
        *(
            (f"By {name.replace('_', ' ')}", "", rows)
            for name, rows in result["distributions"].items()
        ),
    ]


def audit_text(result: Mapping[str, Any]) -> str:
    """Return an audit as text."""
    parts = [
        (title.upper(), sentence, text_table(rows) if rows else "")
        for title, sentence, rows in sections(result)
    ]
    return "\n\n".join("\n".join(filter(None, part)) for part in parts)


def audit_markdown(result: Mapping[str, Any]) -> str:
    """Return an audit as Markdown."""
    parts = [f"# Audit of {result['copies']['positions']:,} positions"]
    for title, sentence, rows in sections(result):
        table = markdown_table(rows) if rows else ""
        parts += filter(None, (f"## {title}", sentence, table))
    return "\n\n".join(parts) + "\n"


def draw_audit(result: Mapping[str, Any]) -> bytes:
    """Return a PNG: shares by bin for each split."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    distributions = result["distributions"]
    size = (5.0, 1 + 2 * len(distributions))  # inches; pages in Dagster show no wider picture
    figure = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(figure)
    panels: Any = figure.subplots(len(distributions), 1)
    for axes, (name, rows) in zip(panels.flat, distributions.items(), strict=True):
        _draw_shares(axes, f"by {name.replace('_', ' ')}", rows)
    copies = result["copies"]
    names = ", ".join(row["dataset"] for row in result["datasets"])
    title = f"{names[:60]}\n{copies['positions']:,} positions, {copies['copies_share']:.1%} copies"
    figure.suptitle(title, fontsize=10)
    drawn = io.BytesIO()
    figure.savefig(drawn, dpi=76)
    return drawn.getvalue()


def _draw_shares(axes: "Axes", title: str, rows: Rows) -> None:
    """Draw the share of each bin, a bar for each split."""
    splits = [name for name in ALL_SPLITS if rows and name in rows[0]]
    width = 0.8 / max(len(splits), 1)
    for at, name in enumerate(splits):
        places = [place + (at - (len(splits) - 1) / 2) * width for place in range(len(rows))]
        axes.bar(places, [row[name] for row in rows], width, label=name)
    axes.set_xticks(
        range(len(rows)), [row["bin"] for row in rows], rotation=35, ha="right", fontsize=7
    )
    axes.set_title(title, fontsize=9)
    if splits:
        axes.legend(fontsize=7)


def write_audit(result: Mapping[str, Any], out: Path) -> None:
    """Publish `audit.json`, `AUDIT.md` and `audit.png` in a folder."""
    JobFolder(out, AUDIT, ConfigError).check()
    files = {"AUDIT.md": audit_markdown(result).encode(), "audit.png": draw_audit(result)}
    publish_result(out, AUDIT, "audit.json", result, files)
