"""The report page: one HTML file that opens from disk, without scripts and without network."""

import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.dataset.strata import CLASSES
from pipeline.evaluation.page import charts
from pipeline.evaluation.page.boards import SECTIONS, board_svg, caption

if TYPE_CHECKING:
    from jinja2 import Environment

LARGEST_PAGE = 3 << 20
"""Bytes that a page stays below: with more checkpoints, only the first ones have boards."""
BOARDS_OF = 3
"""Checkpoints whose boards are shown."""
UNKNOWN = dict.fromkeys(("white", "black", "event", "date", "link"))
"""What a board lacks whose game is not known."""
DEFS = re.compile(r"<defs>.*?</defs>", re.DOTALL)

Report = Mapping[str, Any]


def report_page(
    names: Sequence[str], reports: Sequence[Report], differences: Sequence[Mapping[str, Any]] = ()
) -> bytes:
    """Return the page of one report, or of several side by side with their paired differences."""
    side_by_side = [
        next(row for row in report["details"]["baselines"] if row["name"] == "network") | {"name": name}
        for name, report in zip(names, reports, strict=True)
    ]
    title = f"Report of {names[0]}" if len(names) == 1 else f"{len(names)} checkpoints on the same positions"
    html = (
        _environment()
        .get_template("page.html")
        .render(
            title=title,
            rule=reports[0]["rule"],
            pieces=_pieces(),
            side_by_side=side_by_side,
            differences=differences,
            pages=[
                _page(name, report, at < BOARDS_OF)
                for at, (name, report) in enumerate(zip(names, reports, strict=True))
            ],
        )
    )
    return html.encode()


def _page(name: str, report: Report, with_boards: bool) -> dict[str, Any]:
    """Return what the template shows of one report."""
    from markupsafe import Markup

    def safe(svg: str) -> Markup:
        """Mark an SVG of ours as safe: its only foreign text is escaped by the library that drew it."""
        return Markup(svg)  # noqa: S704

    more = report["details"]
    cells = {(row["rating"], row["time_control"]): row for row in more["rating_by_time_control"]}
    ratings = list(dict.fromkeys(row["rating"] for row in more["rating_by_time_control"]))
    speeds = [speed for speed in CLASSES if any(key[1] == speed for key in cells)]
    puzzles = more.get("puzzles")
    return {
        "name": name,
        "report": report,
        "policy": safe(charts.reliability(more["policy_reliability"], "probability", "share played")),
        "value": safe(charts.reliability(more["value_reliability"], "expected score", "score")),
        "charts": [(kind, safe(charts.bars(rows)), rows) for kind, rows in more["slices"].items() if rows],
        "speeds": speeds,
        "heat": [(rating, [cells.get((rating, speed)) for speed in speeds]) for rating in ratings],
        "heat_rows": [row | {"band": f"{row['rating']}, {row['time_control']}"} for row in cells.values()],
        "told": more.get("ratings_told"),
        "puzzles": puzzles
        and [safe(charts.bars(puzzles[by], "solved", "puzzles")) for by in ("by_rating", "by_theme")],
        "boards": [
            (
                title,
                [
                    {"svg": safe(DEFS.sub("", board_svg(row))), "caption": caption(row), "row": UNKNOWN | row}
                    for row in more["boards"][section]
                ],
            )
            for section, (title, _, _) in SECTIONS.items()
            if with_boards
        ],
    }


@cache
def _environment() -> "Environment":
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    return Environment(
        loader=FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )


@cache
def _pieces() -> Any:
    """Return python-chess's drawings of the pieces, which all boards of the page use."""
    import chess.svg
    from markupsafe import Markup

    return Markup("".join(chess.svg.PIECES.values()))  # noqa: S704
