"""Results as text, Markdown tables and files."""

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pipeline.dataset.files.shards import publish, publish_json
from pipeline.errors import ConfigError
from pipeline.storage.job_folder import REPORT, JobFolder, Kind

SLICED = (
    "band",
    "positions",
    "games",
    "top1",
    "top1_low",
    "top1_high",
    "cross_entropy",
    "value_brier",
    "hand_written_top1",
)
"""Columns of a slice in the text."""
NUMBER = re.compile(r"-|[-+]?[\d,]+(\.\d+)?( %)?")
"""A cell that is aligned to the right."""


def plain_text(result: dict[str, Any], indent: int = 0) -> str:
    """Return a result as aligned lines without what only the page shows; nested objects are
    indented, slices are tables.
    """
    lines = []
    result = {name: value for name, value in result.items() if name != "details"}
    width = max(
        (len(name) for name, value in result.items() if not isinstance(value, dict)), default=0
    )
    for name, value in result.items():
        if name == "slices":
            shown = {
                title: [{key: row[key] for key in SLICED} for row in rows]
                for title, rows in value.items()
            }
            lines += [f"\nby {title}\n{text_table(rows)}" for title, rows in shown.items()]
        elif name == "human_search":
            lines.append(human_search_text(value))
        elif isinstance(value, dict):
            lines += [" " * indent + name, plain_text(value, indent + 2)]
        else:
            lines.append(" " * indent + f"{name:<{width}}  {_shown(value)}")
    return "\n".join(lines)


def _shown(value: Any, places: int = 4) -> str:
    """Return one value: counts with separators, figures with four places, lists with commas."""
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "-"}[value]
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, (list, tuple)):
        return ", ".join(map(_shown, value)) or "-"
    return f"{value:.{places}f}" if isinstance(value, float) else str(value)


def human_search_text(found: dict[str, Any]) -> str:
    """Return the policy without and with search by the mover's rating as a table, differences with
    95 % intervals.
    """
    rows = [
        {
            "mover": row["band"],
            "positions": row["positions"],
            "top1": row["top1"],
            "with search": row["searched_top1"],
            "points": format_points(row),
            "nats": format_nats(row),
        }
        for row in found["rows"]
    ]
    return (
        f"policy corrected by {found['simulations']} simulations, by the mover's "
        f"rating\n{text_table(rows)}"
    )


def format_points(row: Mapping[str, Any]) -> str:
    """Format a paired difference in top-1 with its interval, in points."""
    return _format_difference(row, "top1", 100, 1)


def format_nats(row: Mapping[str, Any]) -> str:
    """Format a paired difference in cross-entropy with its interval, in nats."""
    return _format_difference(row, "cross_entropy", 1, 3)


def _format_difference(row: Mapping[str, Any], figure: str, scale: float, places: int) -> str:
    middle, low, high = (row[f"{figure}_{end}"] for end in ("difference", "low", "high"))
    interval = (
        "too few games"
        if low is None
        else f"{scale * low:+.{places}f} to {scale * high:+.{places}f}"
    )
    return f"{scale * middle:+.{places}f} ({interval})"


def text_table(rows: list[dict[str, Any]]) -> str:
    """Return rows as aligned columns."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    cells = [[_shown(row.get(name), places=3) for name in names] for row in rows]
    return aligned([name.replace("_", " ") for name in names], cells)


def aligned(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return columns two spaces apart: numbers to the right, words to the left; nothing is cut
    off.
    """
    columns = list(zip(header, *rows, strict=True))
    widths = [max(map(len, column)) for column in columns]
    right = [all(NUMBER.fullmatch(cell) for cell in column[1:]) for column in columns]
    lines = (
        "  ".join(
            cell.rjust(w) if r else cell.ljust(w)
            for cell, w, r in zip(line, widths, right, strict=True)
        )
        for line in (header, *rows)
    )
    return "\n".join(line.rstrip() for line in lines)


def write_report(result: dict[str, Any], out: Path) -> None:
    """Publish `report.json`, `.txt` and `.html` in a directory; ConfigError for a folder of another
    kind.
    """
    from pipeline.evaluation.page.page import report_page

    JobFolder(out, REPORT, ConfigError).check()
    _publish_report(result, plain_text(result), report_page([result["preset"]], [result]), out)


def write_reports(found: dict[str, Any], out: Path) -> None:
    """Publish `report.json`, `.txt` and `.html` of several checkpoints, as `reports` returns them;
    raises ConfigError.
    """
    from pipeline.evaluation.page.page import report_page

    JobFolder(out, REPORT, ConfigError).check()
    page = report_page(found["names"], found["reports"], found["differences"])
    _publish_report(
        {"common_rule": found["reports"][0]["common_rule"], **found}, reports_text(found), page, out
    )


def _publish_report(result: dict[str, Any], text: str, page: bytes, out: Path) -> None:
    files = {"report.txt": (text + "\n").encode(), "report.html": page}
    publish_result(out, REPORT, "report.json", result, files)


def publish_result(
    out: Path, kind: Kind, name: str, result: Mapping[str, Any], files: Mapping[str, bytes]
) -> None:
    """Publish a result as JSON, and its other files, in a folder of this kind."""
    folder = JobFolder(out, kind, ConfigError)
    with folder.held():
        folder.claim({})
        publish_json(out, name, result)
        for other, content in files.items():
            publish_bytes(out, other, content)


def reports_text(found: dict[str, Any]) -> str:
    """Return several reports as a Markdown table: figures, and differences from the first
    checkpoint by games.
    """
    gains = [None, *found["differences"]]
    return markdown(
        "checkpoint|top-1 (95 %)|top-3|top-5|cross-entropy|Brier|top-1 less the first's (95 %)",
        (
            (
                name,
                f"{row['top1']:.4f} ({interval_text(row, 'games')})",
                *(f"{row[figure]:.4f}" for figure in ("top3", "top5", "cross_entropy")),
                "-" if row["value_brier"] is None else f"{row['value_brier']:.4f}",
                ""
                if gain is None
                else f"{gain['top1_difference']:+.4f} ({interval_text(gain, 'games', '+')})",
            )
            for name, row, gain in zip(found["names"], found["reports"], gains, strict=True)
        ),
    )


def interval_text(row: dict[str, Any], units: str, sign: str = "") -> str:
    """Return the ends of the interval of top-1, or that there are too few `units` for one."""
    if row["top1_low"] is None:
        return f"too few {units}"
    return f"{row['top1_low']:{sign}.4f} to {row['top1_high']:{sign}.4f}"


def publish_bytes(out: Path, name: str, content: bytes) -> None:
    """Publish a file with this content."""
    publish(out, name, 0, lambda target: target.write(content))


def markdown(columns: str, rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table; `columns` are the titles, separated by `|`. Cells are not
    escaped.
    """
    lines = [columns.split("|"), ["---"] * (columns.count("|") + 1), *rows]
    return (
        "\n".join(f"| {' | '.join(line)} |" for line in lines)
        .replace("| --- ", "|---")
        .replace("--- |", "---|")
    )
