"""The report of an imitation as a page, text and JSON."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import chess

from pipeline.dataset.files.shards import publish_json
from pipeline.evaluation.page import charts
from pipeline.evaluation.page.boards import board_svg, san
from pipeline.evaluation.page.page import UNKNOWN, render, safe, small_board
from pipeline.evaluation.render import format_nats, format_points, markdown, publish_bytes

PARTS = {"all": "all moves", "late": "moves from the 12th on"}
"""Name in the report of each part of the person's moves."""
NETWORKS = {
    "base": "the network that it started from",
    "imitation": "the imitation",
    "stranger": "the stranger's network",
}

Result = Mapping[str, Any]


def write_imitation(result: Result, out: Path) -> None:
    """Publish `report.json`, `report.txt` and `report.html`."""
    out.mkdir(parents=True, exist_ok=True)
    publish_json(out, "report.json", dict(result))
    publish_bytes(out, "report.txt", (imitation_text(result) + "\n").encode())
    publish_bytes(out, "report.html", _imitation_page(result))


def imitation_text(result: Result) -> str:
    """Return the sentences of a report, and its table in Markdown."""
    columns = "network|moves|top-1|points (95 %)|nats (95 %)"
    table = markdown(columns, ([row[name] for name in columns.split("|")] for row in _rows(result)))
    return "\n".join(filter(None, (headline(result), warning(result), table, further_games(result))))


def headline(result: Result) -> str:
    """Return what the imitation gains, in one sentence."""
    row = next(row for row in result["networks"] if row["name"] == "imitation")["all"]
    return (
        f"In {row['positions']:,} moves of the {row['games']:,} newest games of {person(result)}, which no training saw, the "
        f"imitation's first choice is the move played in {100 * row['top1']:.1f} %, {format_points(row)} points "
        "against the network that it started from."
    )


def person(result: Result) -> str:
    """Return the player's names in words."""
    names = " or ".join(result["player"]["names"])
    return "".join(char if char.isprintable() else "?" for char in names)


def warning(result: Result) -> str:
    """Return a warning if the imitation is no better than the base on the validation games, else ""."""
    nats = result["validation"]["all"]["cross_entropy_difference"]
    if nats < 0:
        return ""
    return f"The imitation is no better than before on the validation games ({nats:+.3f} nats a move): it needs more games."


def further_games(result: Result) -> str:
    """Return a sentence on the gain per doubling of the games at the end of the curve, "" without a curve."""
    *_, before, last = curve_points(result)
    if not before["games"]:
        return ""
    doublings = math.log2(last["games"] / before["games"])
    gains = [
        f"{100 * (last[part]['top1_difference'] - before[part]['top1_difference']) / doublings:+.1f} points on {words}"
        for part, words in PARTS.items()
        if part in last and part in before
    ]
    return f"From {before['games']:,} to {last['games']:,} games, each doubling brought {', '.join(gains)}."


def curve_points(result: Result) -> list[Mapping[str, Any]]:
    """Return the comparisons with the base by the number of games, from none to all."""
    base, imitation = (next(row for row in result["networks"] if row["name"] == name) for name in ("base", "imitation"))
    return [{**base, "games": 0}, *result["curve"], {**imitation, "games": result["player"]["games"]}]


def _imitation_page(result: Result) -> bytes:
    return render(
        "imitation.html",
        title=f"A network that plays like {person(result)}",
        headline=headline(result),
        warning=warning(result),
        rows=_rows(result),
        curve=safe(charts.draw_gain(curve_points(result), PARTS)),
        further=further_games(result),
        openings=[{**row, "svg": _draw_position(row)} for row in result["openings"]],
        boards=[_board(row) for row in result["boards"]],
        result=result,
    )


def _rows(result: Result) -> list[dict[str, str]]:
    """Return the table's rows: a network on the moves of a part, as text by column."""
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


def _draw_position(row: Mapping[str, Any]) -> Any:
    return small_board(board_svg(row), row["fen"].split()[1] == "w")


def _board(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the template shows of a move that the imitation found."""
    board = chess.Board(row["fen"])
    played, chosen = (san(board, chess.Move.from_uci(row[name])) for name in ("played", "chosen"))
    number = f"{board.fullmove_number}{'.' if board.turn else '...'}"
    caption = (
        f"{number} {played}: imitation {row['imitated_probability']:.0%}, before {row['played_probability']:.0%}; "
        f"before, first choice {chosen} {row['chosen_probability']:.0%}"
    )
    return {"svg": _draw_position(row), "caption": caption, "row": {**UNKNOWN, **row}}
