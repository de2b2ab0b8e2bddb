"""Write the report of an imitation as text, HTML and JSON."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import chess

from pipeline.evaluation.charts import draw_position, format_san
from pipeline.evaluation.figures import describe_gain
from pipeline.evaluation.render import (
    NO_TAGS,
    format_nats,
    format_points,
    mark_safe,
    render,
)
from pipeline.imitation.book import MIN_BOOK_GAMES, MIN_BOOK_SHARE
from pipeline.storage.job_folder import IMITATION_REPORT_KIND, publish_result
from pipeline.storage.tables import format_markdown

PART_NAMES = {"all": "all moves", "late": "moves from the 12th on"}
"""Names of the parts of the person's moves that are compared."""
NETWORK_NAMES = {
    "base": "the network that it started from",
    "imitation": "the imitation",
    "stranger": "the stranger's network",
}

Result = Mapping[str, Any]
"""Result of `imitate`."""


def write_imitation(result: Result, out: Path) -> None:
    """Publish the report of an imitation as `report.json`, `report.txt` and `report.html`."""
    text, page = f"{format_imitation(result)}\n".encode(), _imitation_page(result)
    files = {"report.txt": text, "report.html": page}
    publish_result(out, IMITATION_REPORT_KIND, "report.json", result, files)


def format_imitation(result: Result) -> str:
    """Return the report as text: two sentences or more, and a Markdown table.

    Intervals of 95 % are in parentheses.
    """
    columns = "network|moves|top-1, %|difference in points|difference in nats"
    rows = _compare_networks(result)
    table = format_markdown(columns, ([row[name] for name in columns.split("|")] for row in rows))
    return "\n".join((write_headline(result), *explain(result), table))


def write_headline(result: Result) -> str:
    """Return the headline: how well the imitation predicts, or why the network was not changed."""
    row, chosen = _find_imitation(result)["all"], result["chosen"]
    if result["saved"]["share"]:
        return (
            f"The imitation of {format_names(result)} finds {100 * row['top1']:.1f} % of the "
            f"person's moves in the {row['games']:,} newest games, "
            f"{describe_gain(row, NETWORK_NAMES['base'])}."
        )
    why = (
        f"in {chosen['games']:,} of them that were held out of training, the gain is not "
        "significant on all moves and on those from the 12th on"
    )
    if chosen["share"]:
        why = (
            "on the newest games, the cross-entropy of the trained network is no lower: it changes "
            f"by {format_nats(row)} nats per move"
        )
    return (
        f"The games of {format_names(result)} did not improve the network: {why}. So this is the "
        "network that training started from, at the person's rating."
    )


def explain(result: Result) -> list[str]:
    """Return paragraphs on what was measured, on the network that is saved, and on its book."""
    imitation, chosen = _find_imitation(result), result["chosen"]
    row = imitation["all"]
    measured = (
        f"Measured on {row['positions']:,} positions of the newest games, from "
        f"{result['held_out']} on, which training did not read."
    )
    if not result["saved"]["share"]:
        return [f"{measured} There, top-1 is {100 * row['top1']:.1f} %.", describe_book(result)]
    if "late" in imitation:
        gain = describe_gain(imitation["late"], "the other network")
        measured += f" On {PART_NAMES['late']}, it finds {gain}."
    saved = (
        f"Its weights are {_format_percent(chosen['share'])} of the way from the original network "
        "to the trained one. This share has the largest gain from the 12th move on, less one "
        f"standard error, in {chosen['games']:,} older games that were held out of training. After "
        "the measurement, the same settings were used to train on all "
        f"{result['saved']['games']:,} games, the newest included: that network is saved, and has "
        "not been measured."
    )
    return [measured, saved, describe_book(result)]


def describe_book(result: Result) -> str:
    """Return sentences on the opening book: what it changes, and whether it is used."""
    book = result["book"]
    if not book["positions"]:
        return "No opening of the newest games is one that the person always played before."
    gain = f"With a book of the older games, it finds {describe_gain(book, 'without')}"
    if not book["used"]:
        return f"It has no book of the openings that the person always plays. {gain}."
    return (
        f"In {book['saved']:,} positions that occur in at least {MIN_BOOK_GAMES} games, the person "
        f"played the same move at least {_format_percent(MIN_BOOK_SHARE)} of the time; the "
        f"imitation always plays this move there. {gain}."
    )


def format_names(result: Result) -> str:
    """Return the player's names as text, with unprintable characters replaced."""
    names = " or ".join(result["player"]["names"])
    return "".join(char if char.isprintable() else "?" for char in names)


def _format_percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _find_imitation(result: Result) -> Mapping[str, Any]:
    return next(row for row in result["networks"] if row["name"] == "imitation")


def _imitation_page(result: Result) -> bytes:
    return render(
        "imitation.html",
        title=f"A network that plays like {format_names(result)}",
        headline=write_headline(result),
        explanations=explain(result),
        rows=_compare_networks(result),
        shares=_make_share_rows(result),
        openings=[{**row, "svg": mark_safe(draw_position(row))} for row in result["openings"]],
        boards=[_draw_board(row) for row in result["boards"]],
        result=result,
    )


def _compare_networks(result: Result) -> list[dict[str, str]]:
    """Return the table's rows, as text by column, for each network and part of the moves."""
    return [
        {
            "network": NETWORK_NAMES[row["name"]],
            "moves": f"{PART_NAMES[part]} ({row[part]['positions']:,})",
            "top-1, %": f"{100 * row[part]['top1']:.1f}",
            "difference in points": "" if row["name"] == "base" else format_points(row[part]),
            "difference in nats": "" if row["name"] == "base" else format_nats(row[part]),
        }
        for part in PART_NAMES
        for row in result["networks"]
        if part in row
    ]


def _make_share_rows(result: Result) -> list[dict[str, Any]]:
    """Return a table's rows, one for each interpolation share that was tried.

    `chosen` is a bool, and the other values are text.
    """
    chosen = result["chosen"]
    return [
        {"share": _format_percent(row["share"]), "chosen": row["share"] == chosen["share"]}
        | {part: format_nats(row[part]) if part in row else "" for part in PART_NAMES}
        for row in chosen["tried"]
    ]


def _draw_board(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of the macro `board` for a move that only the imitation predicts."""
    board = chess.Board(row["fen"])
    played, chosen = (
        format_san(board, chess.Move.from_uci(row[name])) for name in ("played", "chosen")
    )
    number = f"{board.fullmove_number}{'.' if board.turn else '...'}"
    caption = (
        f"{number} {played}: imitation {_format_percent(row['imitated_probability'])}, before "
        f"{_format_percent(row['played_probability'])}; before, first choice {chosen} "
        f"{_format_percent(row['chosen_probability'])}"
    )
    drawing = mark_safe(draw_position(row))
    return {"svg": drawing, "title": "", "caption": caption, "row": {**NO_TAGS, **row}}
