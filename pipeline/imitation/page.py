"""Write the report of an imitation as HTML, text and JSON."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import chess

from pipeline.evaluation.charts import board_svg, san
from pipeline.evaluation.render import (
    UNKNOWN,
    format_nats,
    format_points,
    render,
    safe,
)
from pipeline.imitation.book import MIN_BOOK_GAMES, MIN_BOOK_SHARE
from pipeline.storage.job_folder import IMITATION_REPORT_KIND, publish_result
from pipeline.storage.tables import format_markdown

PARTS = {"all": "all moves", "late": "moves from the 12th on"}
"""Names in the report of the parts of the person's moves."""
NETWORKS = {
    "base": "the network that it started from",
    "imitation": "the imitation",
    "stranger": "the stranger's network",
}

Result = Mapping[str, Any]


def write_imitation(result: Result, out: Path) -> None:
    """Publish `report.json`, `report.txt` and `report.html`."""
    text, page = (imitation_text(result) + "\n").encode(), _imitation_page(result)
    files = {"report.txt": text, "report.html": page}
    publish_result(out, IMITATION_REPORT_KIND, "report.json", result, files)


def imitation_text(result: Result) -> str:
    """Return the report as text: two sentences or more, and a Markdown table."""
    columns = "network|moves|top-1|points (95 %)|nats (95 %)"
    table = format_markdown(
        columns, ([row[name] for name in columns.split("|")] for row in _rows(result))
    )
    return "\n".join((headline(result), explain(result), table))


def headline(result: Result) -> str:
    """Return the report's first sentence: the gain of the imitation, or that it is the base
    network.
    """
    row = next(row for row in result["networks"] if row["name"] == "imitation")
    chosen = result["chosen"]
    if not result["saved"]["share"]:
        why = (
            f"in {chosen['games']:,} of them that were held out of training, the gain is not "
            "significant on all moves and on those from the 12th on"
        )
        if chosen["share"]:
            nats = format_nats(row["all"])
            why = f"on the newest games the trained network is no better, {nats} nats per move"
        return (
            f"The games of {person(result)} did not improve the network: {why}. So this is the "
            "network that training started from, at the person's rating."
        )
    late = f", and {format_points(row['late'])} on {PARTS['late']}" if "late" in row else ""
    return (
        f"Against the network that it started from, the imitation of {person(result)} gains "
        f"{format_points(row['all'])} points of top-1 in the {row['all']['games']:,} newest games"
        f"{late}."
    )


def explain(result: Result) -> str:
    """Return sentences on what was measured, and on the chosen interpolation share."""
    row = next(row for row in result["networks"] if row["name"] == "imitation")["all"]
    chosen = result["chosen"]
    measured = (
        f"Its first choice is the move played in {100 * row['top1']:.1f} % of {row['positions']:,} "
        "moves that were held out of training."
    )
    if not result["saved"]["share"]:
        return f"{measured} {describe_book(result)}"
    return (
        f"{measured} Its weights are {chosen['share']:.0%} of the way from the original network to "
        "the trained one. This share has the largest gain from the 12th move on, less one standard "
        f"error, in {chosen['games']:,} other games that were held out of training. "
        "After this measurement, the same settings were used to train on all "
        f"{result['saved']['games']:,} games, the newest included: that network is saved, and has "
        f"not been measured. {describe_book(result)}"
    )


def describe_book(result: Result) -> str:
    """Return sentences on the opening book: what it changes, and whether it is used."""
    book = result["book"]
    if not book["positions"]:
        return "No opening of the newest games is one that the person always played before."
    change = f"{format_points(book)} points of top-1 in the newest games"
    if not book["used"]:
        return f"A book of the openings that the person always plays is not used: {change}."
    return (
        f"In {book['saved']:,} positions that occur in at least {MIN_BOOK_GAMES} games, the person "
        f"played one move in at least {MIN_BOOK_SHARE:.0%} of them; this move is always played "
        f"there. A book of the games before the newest changes the first choice by {change}."
    )


def person(result: Result) -> str:
    """Return the player's names as text, with unprintable characters replaced."""
    names = " or ".join(result["player"]["names"])
    return "".join(char if char.isprintable() else "?" for char in names)


def _imitation_page(result: Result) -> bytes:
    return render(
        "imitation.html",
        title=f"A network that plays like {person(result)}",
        headline=headline(result),
        explanation=explain(result),
        rows=_rows(result),
        shares=_shares(result),
        openings=[{**row, "svg": safe(board_svg(row))} for row in result["openings"]],
        boards=[_board(row) for row in result["boards"]],
        result=result,
    )


def _rows(result: Result) -> list[dict[str, str]]:
    """Return the table's rows as text by column: one for each network and part of the moves."""
    return [
        {
            "network": NETWORKS[row["name"]],
            "moves": f"{PARTS[part]} ({row[part]['positions']:,})",
            "top-1": f"{100 * row[part]['top1']:.1f} %",
            "points (95 %)": "" if row["name"] == "base" else format_points(row[part]),
            "nats (95 %)": "" if row["name"] == "base" else format_nats(row[part]),
        }
        for part in PARTS
        for row in result["networks"]
        if part in row
    ]


def _shares(result: Result) -> list[dict[str, str]]:
    """Return a row for each interpolation share that was tried, as text by column."""
    return [
        {"share": f"{row['share']:.0%}", "chosen": row["share"] == result["chosen"]["share"]}
        | {part: format_nats(row[part]) if part in row else "" for part in PARTS}
        for row in result["chosen"]["tried"]
    ]


def _board(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the template's values for a move that the imitation found."""
    board = chess.Board(row["fen"])
    played, chosen = (san(board, chess.Move.from_uci(row[name])) for name in ("played", "chosen"))
    number = f"{board.fullmove_number}{'.' if board.turn else '...'}"
    caption = (
        f"{number} {played}: imitation {row['imitated_probability']:.0%}, before "
        f"{row['played_probability']:.0%}; before, first choice {chosen} "
        f"{row['chosen_probability']:.0%}"
    )
    drawing = safe(board_svg(row))
    return {"svg": drawing, "title": "", "caption": caption, "row": {**UNKNOWN, **row}}
