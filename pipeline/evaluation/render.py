"""Render a report as text and as one self-contained HTML page, and write its files.

The page opens from disk and needs neither scripts nor a network connection. Its templates are in
page/.
"""

from collections.abc import Mapping
from functools import cache
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.errors import ConfigError
from pipeline.evaluation import charts
from pipeline.evaluation.measure import COMPARED_SECTIONS, SECTIONS
from pipeline.storage.job_folder import REPORT, JobFolder, Kind
from pipeline.storage.stores import publish, publish_json
from pipeline.storage.tables import markdown, plain_text, text_table

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup

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
"""Columns of a slice in the text report."""
UNKNOWN = dict.fromkeys(("white", "black", "event", "date", "link"))
"""Tags of a board if its game was not found."""

SHOWN = 3
"""Number of boards on the first screen of a page."""
INPUTS = {"elo": "both players' ratings", "clock": "the clock and the time control"}
"""What a network knows beside the board, by the column that it reads."""

Row = Mapping[str, Any]


def report_text(report: Row) -> str:
    """Return a report as text: its figures, followed by its slices as tables."""
    elsewhere = ("details", "human_search", "slices")
    figures = {name: value for name, value in report.items() if name not in elsewhere}
    searched = [human_search_text(report["human_search"])] if "human_search" in report else []
    tables = [
        f"\nby {title}\n{text_table([{name: row[name] for name in SLICED} for row in rows])}"
        for title, rows in report["slices"].items()
    ]
    return "\n".join([plain_text(figures), *searched, *tables])


def human_search_text(found: dict[str, Any]) -> str:
    """Return a table that compares the policy with and without search, by the mover's rating."""
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
    title = f"policy corrected by {found['simulations']} simulations, by the mover's rating"
    return f"{title}\n{text_table(rows)}"


def format_points(row: Mapping[str, Any]) -> str:
    """Format a paired difference in top-1 and its interval, in percentage points."""
    return _format_difference(row, "top1", 100, 1)


def format_nats(row: Mapping[str, Any]) -> str:
    """Format a paired difference in cross-entropy and its interval, in nats."""
    return _format_difference(row, "cross_entropy", 1, 3)


def _format_difference(row: Mapping[str, Any], figure: str, scale: float, places: int) -> str:
    middle, low, high = (row[f"{figure}_{end}"] for end in ("difference", "low", "high"))
    interval = "too few games"
    if low is not None:
        interval = f"{scale * low:+.{places}f} to {scale * high:+.{places}f}"
    return f"{scale * middle:+.{places}f} ({interval})"


def write_report(result: dict[str, Any], out: Path) -> None:
    """Publish a checkpoint's report as JSON, text and HTML; raises ConfigError."""
    _publish(result, report_text(result), wrap_report(result), out)


def write_reports(found: dict[str, Any], out: Path) -> None:
    """Publish the result of `reports` as JSON, text and HTML; raises ConfigError."""
    result = {"common_rule": found["reports"][0]["common_rule"], **found}
    text = "\n".join((found["headline"], found["compared"], reports_text(found)))
    _publish(result, text, found, out)


def wrap_report(report: Row) -> dict[str, Any]:
    """Return one report in the form of the result of `reports`."""
    found = {name: report[name] for name in ("headline", "compared")}
    found |= {"names": [report["name"]], "reports": [report]}
    return found | {"differences": [], "boards": {}}


def _publish(result: Row, text: str, found: Row, out: Path) -> None:
    JobFolder(out, REPORT, ConfigError).check()  # fail before drawing the page
    files = {"report.txt": (text + "\n").encode(), "report.html": report_page(found)}
    publish_result(out, REPORT, "report.json", result, files)


def publish_result(
    out: Path, kind: Kind, name: str, result: Mapping[str, Any], files: Mapping[str, bytes]
) -> None:
    """Publish a result as JSON, together with other files, in a job folder."""
    folder = JobFolder(out, kind, ConfigError)
    with folder.lock():
        folder.claim({})
        publish_json(out, name, result)
        for other, content in files.items():
            publish_bytes(out, other, content)


def reports_text(found: Row) -> str:
    """Return a Markdown table with a row per report, with differences from the first."""
    heads = "checkpoint|top-1 (95 %)|top-3|top-5|cross-entropy|Brier|top-1 less the first's (95 %)"
    rows, gains = [], [None, *found["differences"]]
    for name, report, gain in zip(found["names"], found["reports"], gains, strict=True):
        figures = [report[figure] for figure in ("top3", "top5", "cross_entropy", "value_brier")]
        cells = ["-" if figure is None else f"{figure:.4f}" for figure in figures]
        less = ""
        if gain is not None:
            less = f"{gain['top1_difference']:+.4f} ({interval_text(gain, 'games', '+')})"
        top1 = f"{report['top1']:.4f} ({interval_text(report, 'games')})"
        rows.append((name, top1, *cells, less))
    return markdown(heads, rows)


def interval_text(row: Row, units: str, sign: str = "") -> str:
    """Format the interval of top-1, or return "too few UNITS" if there is none."""
    if row["top1_low"] is None:
        return f"too few {units}"
    return f"{row['top1_low']:{sign}.4f} to {row['top1_high']:{sign}.4f}"


def publish_bytes(out: Path, name: str, content: bytes) -> None:
    """Publish a file with the given content."""
    publish(out, name, 0, lambda target: target.write(content))


def report_page(found: Row) -> bytes:
    """Return the HTML page of the result of `reports`: the last network comes first."""
    pairs = list(zip(found["names"], found["reports"], strict=True))
    networks: dict[str, Row] = dict(pairs[-1:] + pairs[:-1])
    subject, *others = networks
    sections = COMPARED_SECTIONS if others else SECTIONS
    boards = found["boards"] or networks[subject]["details"]["boards"]
    words = {"name": subject, "reference": found["names"][0]}
    shown = [
        [_board(row, sections[section][0].format(**words), **words) for row in rows]
        for section, rows in boards.items()
        if section in sections
    ]
    in_turn = [board for column in zip_longest(*shown) for board in column if board is not None]
    by_rating = {name: report["slices"]["rating"] for name, report in networks.items()}
    kinds = networks[subject]["slices"]
    curves = {name: report["details"]["training"] for name, report in networks.items()}
    curves = {name: entries for name, entries in curves.items() if entries}
    return render(
        "page.html",
        title=f"Report of {subject}",
        found=found,
        subject=subject,
        reference=found["names"][0],
        side_by_side=_side_by_side(found),
        accuracy=safe(charts.draw_bars(by_rating)),
        first_boards=in_turn[:SHOWN],
        boards=in_turn[SHOWN:],
        by_rating=by_rating,
        charts=[(kind, *_slice(networks, kind)) for kind in kinds if kind != "rating"],
        training=safe(charts.draw_training(curves)) if curves else "",
        pages=[_page(name, report) for name, report in networks.items()],
    )


def _side_by_side(found: Row) -> list[dict[str, Any]]:
    """Return a table row for each network: its figures, and its difference from the first."""
    gains = [None, *found["differences"]]
    return [
        {**report["details"]["baselines"][0], "name": name, "gain": gain}
        for name, report, gain in zip(found["names"], found["reports"], gains, strict=True)
    ]


def _slice(networks: Mapping[str, Row], kind: str) -> tuple["Markup | str", dict[str, Any]]:
    """Return the chart of one kind of slice, "" if it has one group, and each network's rows."""
    groups = {name: report["slices"][kind] for name, report in networks.items()}
    alone = next(iter(networks.values()))["top1"] if len(networks) == 1 else None
    is_split = all(len(rows) > 1 for rows in groups.values())
    return safe(charts.draw_bars(groups, alone)) if is_split else "", groups


def render(template: str, **values: Any) -> bytes:
    """Render a template from the folder page/; text is escaped unless marked with `safe`."""
    return _environment().get_template(template).render(**values).encode()


def safe(svg: str) -> "Markup":
    """Mark SVG as safe; the library that generated it has escaped all text."""
    from markupsafe import Markup

    return Markup(svg)  # noqa: S704


def _page(name: str, report: Row) -> dict[str, Any]:
    """Return the template's values for the section of one network."""
    more = report["details"]
    before = more["value_reliability_before"]
    policy = charts.draw_reliability(more["policy_reliability"], "probability", "share played")
    value = charts.draw_reliability(more["value_reliability"], "expected score", "score", before)
    knows = [words for column, words in INPUTS.items() if column in report["reads"]]
    return {
        "name": name,
        "report": report,
        "knows": " and ".join(knows),
        "policy": safe(policy),
        "value": safe(value),
    }


def _board(row: Row, title: str, **names: str) -> dict[str, Any]:
    """Return the template's values for one board."""
    drawing, text = safe(charts.board_svg(row)), charts.caption(row, **names)
    return {"svg": drawing, "title": title, "caption": text, "row": {**UNKNOWN, **row}}


@cache
def _environment() -> "Environment":
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    return Environment(
        loader=FileSystemLoader(Path(__file__).with_name("page")),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
    )
