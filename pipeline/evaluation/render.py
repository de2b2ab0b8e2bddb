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
from pipeline.storage.job_folder import REPORT_KIND, JobFolder, publish_result
from pipeline.storage.tables import format_markdown, plain_text, text_table

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

MAX_FIRST_BOARDS = 3
"""Maximum number of boards on the first screen of a page."""
INPUTS = {"elo": "both players' ratings", "clock": "the clock", "base": "the time control"}
"""Inputs of a network besides the board, by the column that it reads."""
SEEN_SENTENCES = {
    "yes": "It was trained on these games.",
    "no": "It was not trained on these games.",
    "unknown": "It may have been trained on some of these games.",
    "no, another dump": "The games that it was trained on are from other dumps.",
}
"""Whether a network was trained on the measured games, by the report's `seen_in_training`."""
TITLES = {
    "ply": "By half-move of the game",
    "clock": "By time on the clock",
    "legal moves": "By number of legal moves",
    "in train": "Positions that do and do not occur in training",
}
"""Titles of charts, by slice; those of other slices are "By" and their name."""

Row = Mapping[str, Any]


def report_text(result: Row) -> str:
    """Return the result of `report` or `reports` as text.

    One report has all its figures, followed by its slices as tables. Several have a table.
    """
    if "reports" in result:
        return "\n".join((result["headline"], result["compared"], reports_text(result)))
    elsewhere = ("details", "human_search", "slices")
    figures = {name: value for name, value in result.items() if name not in elsewhere}
    searched = [human_search_text(result["human_search"])] if "human_search" in result else []
    tables = [
        f"\nby {title}\n{text_table([{name: row[name] for name in SLICED} for row in rows])}"
        for title, rows in result["slices"].items()
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


def format_points(row: Row) -> str:
    """Format a paired difference in top-1 and its interval, in percentage points."""
    return f"{100 * row['top1_difference']:+.1f} ({_format_interval(row, '+.1f', scale=100)})"


def format_nats(row: Row) -> str:
    """Format a paired difference in cross-entropy and its interval, in nats."""
    interval = _format_interval(row, "+.3f", "cross_entropy")
    return f"{row['cross_entropy_difference']:+.3f} ({interval})"


def write_report(result: Row, out: Path) -> None:
    """Publish the result of `report` or `reports` as JSON, text and HTML; raises ConfigError."""
    JobFolder(out, REPORT_KIND, ConfigError).check()  # fail before drawing the page
    files = {"report.txt": f"{report_text(result)}\n".encode(), "report.html": report_page(result)}
    publish_result(out, REPORT_KIND, "report.json", result, files)


def reports_text(found: Row) -> str:
    """Return a Markdown table with a row per report, with differences from the first."""
    heads = "checkpoint|top-1 (95 %)|top-3|top-5|cross-entropy|Brier|difference of top-1 (95 %)"
    rows, gains = [], [None, *found["differences"]]
    for name, report, gain in zip(found["names"], found["reports"], gains, strict=True):
        figures = [report[figure] for figure in ("top3", "top5", "cross_entropy", "value_brier")]
        cells = ["-" if figure is None else f"{figure:.4f}" for figure in figures]
        top1 = f"{report['top1']:.4f} ({_format_interval(report, '.4f')})"
        difference = ""
        if gain is not None:
            difference = f"{gain['top1_difference']:+.4f} ({_format_interval(gain, '+.4f')})"
        rows.append((name, top1, *cells, difference))
    return format_markdown(heads, rows)


def _format_interval(row: Row, form: str, figure: str = "top1", scale: float = 1) -> str:
    low, high = row[f"{figure}_low"], row[f"{figure}_high"]
    return "too few games" if low is None else f"{scale * low:{form}} to {scale * high:{form}}"


def report_page(result: Row) -> bytes:
    """Return the HTML page of the result of `report` or `reports`: the last network comes first."""
    reports = [*result.get("reports", [result])]
    gains = [None, *result.get("differences", ())]
    subject, reference = reports[-1]["name"], reports[0]["name"]
    networks: dict[str, Row] = {one["name"]: one for one in (reports[-1], *reports[:-1])}
    is_compared = len(reports) > 1
    sections = COMPARED_SECTIONS if is_compared else SECTIONS
    boards = result["boards"] if is_compared else reports[0]["details"]["boards"]
    words = {"name": subject, "reference": reference}
    shown = [
        [_board(row, section.title.format(**words), **words) for row in boards.get(name, ())]
        for name, section in sections.items()
    ]
    in_turn = [board for column in zip_longest(*shown) for board in column if board is not None]
    curves = {name: one["details"]["training"] for name, one in networks.items()}
    curves = {name: entries for name, entries in curves.items() if entries}
    slices = {
        kind: {name: one["slices"][kind] for name, one in networks.items()}
        for kind in reports[-1]["slices"]
    }
    by_rating = slices.pop("rating")
    whole = None if is_compared else reports[0]["top1"]
    return render(
        "page.html",
        title=f"Report of {subject}",
        found=result,
        is_compared=is_compared,
        subject=subject,
        reference=reference,
        titles=TITLES,
        side_by_side=[
            {**one["details"]["baselines"][0], "name": one["name"], "gain": gain}
            for one, gain in zip(reports, gains, strict=True)
        ],
        accuracy=safe(charts.draw_bars(by_rating)),
        first_boards=in_turn[:MAX_FIRST_BOARDS],
        boards=in_turn[MAX_FIRST_BOARDS:],
        by_rating=by_rating,
        charts=[
            (kind, safe(charts.draw_bars(groups, whole)), groups)
            for kind, groups in slices.items()
            if all(len(rows) > 1 for rows in groups.values())
        ],
        training=safe(charts.draw_training(curves)) if curves else "",
        pages=[_page(name, report) for name, report in networks.items()],
    )


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
    policy, value = more["policy_reliability"], more["value_reliability"]
    reads = [words for column, words in INPUTS.items() if column in report["reads"]]
    return {
        "name": name,
        "report": report,
        "reads": " and ".join(filter(None, (", ".join(reads[:-1]), *reads[-1:]))),
        "seen": SEEN_SENTENCES[report["seen_in_training"]],
        "policy": safe(
            charts.draw_reliability(policy, "predicted probability", "share of moves played")
        ),
        "value": safe(charts.draw_reliability(value, "predicted score", "actual score", before)),
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
