"""Write a report as text and as one self-contained HTML page.

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
from pipeline.evaluation.measure import BOARD_SECTIONS, COMPARISON_SECTIONS
from pipeline.storage.job_folder import REPORT_KIND, JobFolder, publish_result
from pipeline.storage.tables import format_markdown, format_plain_text, format_text_table

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup

SLICE_COLUMNS = (
    *("band", "positions", "games", "top1", "top1_low", "top1_high"),
    *("cross_entropy", "value_brier", "hand_written_top1"),
)
"""Columns of the tables in the text report."""
NO_TAGS = dict.fromkeys(("white", "black", "event", "date", "link"))
"""Tags of a board whose game was not found."""
MAX_FIRST_BOARDS = 3
"""Maximum number of boards on the first screen of the page."""
INPUT_PHRASES = {"elo": "both players' ratings", "clock": "the clock", "base": "the time control"}
"""Phrases for a network's inputs besides the board, by the column that it reads."""
CHART_TITLES = {
    "ply": "By half-move of the game",
    "clock": "By time on the clock",
    "legal moves": "By number of legal moves",
    "in train": "Positions that do and do not occur in training",
}
"""Titles of charts by slice; the others are "By" and the slice's name."""

Row = Mapping[str, Any]


def format_report(result: Row) -> str:
    """Return the result of `report` or `reports` as text.

    The text of one report has its figures and a table for each slice. The text of several reports
    has two sentences and a table.
    """
    if "reports" in result:
        return "\n".join((result["headline"], result["compared"], format_reports(result)))
    left_out = ("details", "human_search", "slices")
    figures = {name: value for name, value in result.items() if name not in left_out}
    searched = [format_human_search(result["human_search"])] if "human_search" in result else []
    tables = []
    for title, rows in result["slices"].items():
        columns = [{name: row[name] for name in SLICE_COLUMNS} for row in rows]
        tables.append(f"\nby {title}\n{format_text_table(columns)}")
    return "\n".join([format_plain_text(figures), *searched, *tables])


def format_human_search(found: dict[str, Any]) -> str:
    """Return a table that compares the policy with and without search, by the player's rating."""
    rows = [
        {
            "rating": row["band"],
            "positions": row["positions"],
            "top1": row["top1"],
            "with search": row["searched_top1"],
            "points (95 % interval)": format_points(row),
            "nats (95 % interval)": format_nats(row),
        }
        for row in found["rows"]
    ]
    title = f"policy corrected by {found['simulations']} simulations, by the player's rating"
    return f"{title}\n{format_text_table(rows)}"


def format_points(row: Row) -> str:
    """Format a paired difference in top-1 with its interval, in percentage points."""
    return f"{100 * row['top1_difference']:+.1f} ({_format_interval(row, '+.1f', scale=100)})"


def format_nats(row: Row) -> str:
    """Format a paired difference in cross-entropy with its interval, in nats."""
    interval = _format_interval(row, "+.3f", "cross_entropy")
    return f"{row['cross_entropy_difference']:+.3f} ({interval})"


def write_report(result: Row, out: Path) -> None:
    """Publish the result of `report` or `reports` as JSON, text and HTML; raises ConfigError."""
    # fail before the page is drawn, which takes seconds
    JobFolder(out, REPORT_KIND, ConfigError).check()
    text, page = f"{format_report(result)}\n".encode(), render_report(result)
    files = {"report.txt": text, "report.html": page}
    publish_result(out, REPORT_KIND, "report.json", result, files)


def format_reports(found: Row) -> str:
    """Return a Markdown table with a row for each report, and the differences from the first.

    Intervals of 95 % are in parentheses. Cross-entropy is in nats.
    """
    heads = "checkpoint|top-1, %|difference in points|top-3, %|top-5, %|cross-entropy|Brier score"
    rows, gains = [], [None, *found["differences"]]
    for name, report, gain in zip(found["names"], found["reports"], gains, strict=True):
        top1, top3, top5 = (f"{100 * report[f'top{k}']:.1f}" for k in (1, 3, 5))
        top1 += f" ({_format_interval(report, '.1f', scale=100)})"
        points = "" if gain is None else format_points(gain)
        nats, brier = (
            "-" if report[figure] is None else f"{report[figure]:.3f}"
            for figure in ("cross_entropy", "value_brier")
        )
        rows.append((name, top1, points, top3, top5, nats, brier))
    return format_markdown(heads, rows)


def _format_interval(row: Row, form: str, figure: str = "top1", scale: float = 1) -> str:
    low, high = row[f"{figure}_low"], row[f"{figure}_high"]
    return "too few games" if low is None else f"{scale * low:{form}} to {scale * high:{form}}"


def render_report(result: Row) -> bytes:
    """Return the HTML page for the result of `report` or `reports`.

    If there are several networks, the last one is the subject of the page and comes first.
    """
    reports = [*result.get("reports", [result])]
    gains = [None, *result.get("differences", ())]
    subject, reference = reports[-1]["name"], reports[0]["name"]
    in_order: list[Row] = [reports[-1], *reports[:-1]]
    networks = {report["name"]: report for report in in_order}
    is_compared = len(reports) > 1
    sections = COMPARISON_SECTIONS if is_compared else BOARD_SECTIONS
    boards = result["boards"] if is_compared else reports[0]["details"]["boards"]
    names = {"name": subject, "reference": reference}
    drawn = [
        [_draw_board(row, section.title.format(**names), **names) for row in boards.get(name, ())]
        for name, section in sections.items()
    ]
    # the first board of each section, then the second, and so on
    in_turn = [board for column in zip_longest(*drawn) for board in column if board is not None]
    logs = {name: report["details"]["training"] for name, report in networks.items()}
    curves = {name: entries for name, entries in logs.items() if entries}
    slices = {
        kind: {name: report["slices"][kind] for name, report in networks.items()}
        for kind in reports[-1]["slices"]
    }
    by_rating = slices.pop("rating")
    average = None if is_compared else reports[0]["top1"]
    return render(
        "page.html",
        title=f"Report of {subject}",
        found=result,
        is_compared=is_compared,
        subject=subject,
        reference=reference,
        titles=CHART_TITLES,
        side_by_side=[
            {**report, "gain": gain} for report, gain in zip(reports, gains, strict=True)
        ],
        accuracy=mark_safe(charts.draw_bars(by_rating)),
        first_boards=in_turn[:MAX_FIRST_BOARDS],
        boards=in_turn[MAX_FIRST_BOARDS:],
        by_rating=by_rating,
        charts=[
            (kind, mark_safe(charts.draw_bars(groups, average)), groups)
            for kind, groups in slices.items()
            if all(len(rows) > 1 for rows in groups.values())
        ],
        training=mark_safe(charts.draw_training(curves)) if curves else "",
        pages=[_describe_network(report) for report in networks.values()],
    )


def render(template: str, **values: Any) -> bytes:
    """Render a template of the folder page/; all text is escaped unless marked by `mark_safe`."""
    return _environment().get_template(template).render(**values).encode()


def mark_safe(svg: str) -> "Markup":
    """Mark SVG so that a template does not escape it; its text must be escaped already."""
    from markupsafe import Markup

    return Markup(svg)  # noqa: S704


def _describe_network(report: Row) -> dict[str, Any]:
    """Return the values of checkpoint.html, the section about one network."""
    from pipeline.evaluation.figures import SEEN_IN_TRAINING  # imports polars

    more, draw = report["details"], charts.draw_reliability
    before = more["value_reliability_before"]
    policy = draw(more["policy_reliability"], "predicted probability", "share of moves played")
    value = draw(more["value_reliability"], "predicted score", "actual score", before)
    reads = [words for column, words in INPUT_PHRASES.items() if column in report["reads"]]
    return {
        "report": report,
        "reads": " and ".join(filter(None, (", ".join(reads[:-1]), *reads[-1:]))),
        "seen": SEEN_IN_TRAINING[report["seen_in_training"]],
        "policy": mark_safe(policy),
        "value": mark_safe(value),
    }


def _draw_board(row: Row, title: str, **names: str) -> dict[str, Any]:
    """Return the values of the macro `board`: drawing, title, caption and tags."""
    drawing, text = mark_safe(charts.draw_position(row)), charts.make_caption(row, **names)
    return {"svg": drawing, "title": title, "caption": text, "row": {**NO_TAGS, **row}}


@cache
def _environment() -> "Environment":
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).with_name("page")),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
    )
    environment.globals |= {"format_points": format_points, "format_nats": format_nats}
    return environment
