"""The report page: one HTML file that opens from disk, without scripts and without network."""

import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.evaluation.page import charts
from pipeline.evaluation.page.boards import SECTIONS, board_svg, caption

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup

UNKNOWN = dict.fromkeys(("white", "black", "event", "date", "link"))
"""Tags of a board whose game was not found."""
SHARED = re.compile(
    r"<defs>.*?</defs>"
    r'|<rect x="7\.5"[^>]*/>|<g transform="[^"]*" fill="#e5e5e5"[^>]*>.*?</g>'
    r'|<rect [^>]*class="square (?:light|dark) [a-h][1-8]"[^>]*/>'
    r'| xlink:href="[^"]*"',
    re.DOTALL,
)
"""Parts that all of python-chess's boards share: drawings of pieces, the frame with coordinates,
unmarked squares."""

Report = Mapping[str, Any]


def report_page(
    names: Sequence[str], reports: Sequence[Report], differences: Sequence[Mapping[str, Any]] = ()
) -> bytes:
    """Return the page of one report, or of several side by side."""
    side_by_side = [
        next(row for row in report["details"]["baselines"] if row["name"] == "network")
        | {"name": name}
        for name, report in zip(names, reports, strict=True)
    ]
    title = (
        f"Report of {names[0]}"
        if len(names) == 1
        else f"{len(names)} checkpoints on the same positions"
    )
    return render(
        "page.html",
        title=title,
        side_by_side=side_by_side,
        differences=differences,
        pages=[_page(name, report) for name, report in zip(names, reports, strict=True)],
    )


def render(template: str, **values: Any) -> bytes:
    """Render a template of this folder; text is escaped unless `safe` marked it."""
    return _environment().get_template(template).render(drawings=_drawings(), **values).encode()


def safe(svg: str) -> "Markup":
    """Mark SVG or HTML as safe: the library that made it has escaped all text."""
    from markupsafe import Markup

    return Markup(svg)  # noqa: S704


def small_board(svg: str, orientation: bool) -> "Markup":
    """Return a board that refers to the page's shared drawings: 3 kB instead of 23."""
    bare = SHARED.sub("", svg)
    at = bare.index("</desc>") + len("</desc>")
    return safe(f'{bare[:at]}<use href="#board-{int(orientation)}" />{bare[at:]}')


def _page(name: str, report: Report) -> dict[str, Any]:
    """Return the template's values for one report."""
    more, slices = report["details"], report["slices"]
    boards = {
        title: list(map(_board, more["boards"][section]))
        for section, (title, _, _) in SECTIONS.items()
    }
    return {
        "name": name,
        "report": report,
        "by_rating": safe(charts.draw_accuracy(report)),
        "training": safe(charts.draw_training(more["training"])) if more["training"] else "",
        "policy": safe(
            charts.draw_reliability(more["policy_reliability"], "probability", "share played")
        ),
        "value": safe(
            charts.draw_reliability(
                more["value_reliability"],
                "expected score",
                "score",
                more["value_reliability_before"],
            )
        ),
        "charts": [
            (kind, safe(charts.draw_bars(rows, report["top1"])), rows)
            for kind, rows in slices.items()
            if rows
        ],
        "first_boards": [found[0] for found in boards.values() if found],
        "boards": [(title, found[1:]) for title, found in boards.items()],
    }


def _board(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the template shows of one board."""
    drawing = small_board(board_svg(row), row["fen"].split()[1] == "w")
    return {"svg": drawing, "caption": caption(row), "row": {**UNKNOWN, **row}}


@cache
def _environment() -> "Environment":
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    return Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
    )


@cache
def _drawings() -> "Markup":
    """Return the pieces and empty boards that all boards of a page share."""
    import chess.svg

    boards = []
    for orientation in (chess.BLACK, chess.WHITE):
        empty = chess.svg.board(None, orientation=orientation)
        content = re.sub(
            r"<desc>.*?</desc>|<defs>.*?</defs>|</?svg[^>]*>", "", empty, flags=re.DOTALL
        )
        boards.append(f'<g id="board-{int(orientation)}">{content}</g>')
    return safe("".join([*chess.svg.PIECES.values(), *boards]))
