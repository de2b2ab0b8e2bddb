"""Metadata of tuned networks: results of generations, sample games, Elo, imitation of a player."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import chess.pgn
import dagster as dg

from pipeline.defs.pages.metadata import Metadata, describe_path, link_report, make_table
from pipeline.finetune.state import NOTHING_PROMOTED, locate_generation, read_state
from pipeline.matches.match import ELO_FIELDS, format_elo

NUM_SAMPLE_GAMES = 4
"""Number of games that are shown."""
VERDICT_COLUMNS = ("generation", "verdict", "games", "top1", "reason")
"""Columns of the table of generations."""
MATCH_COLUMNS = {
    **{"a": "player", "b": "opponent", "games": "games", "wins": "wins", "draws": "draws"},
    **{"losses": "losses", "score": "score", "los": "likelihood of superiority"},
}
"""Columns of the table of matches: field of a result -> header."""


def describe_finetuning(out: Path, result: Mapping[str, Any]) -> Metadata:
    """Return metadata of a fine-tuning: figures, choice of teacher, generations, sample games."""
    figures = _select_elo(result["against_seed"])
    figures |= {name: result["eval"].get(name) for name in ("top1", "cross_entropy")}
    figures["top1_of_start"] = result["seed_eval"].get("top1")
    rows = [
        {name: "" if row[name] is None else row[name] for name in VERDICT_COLUMNS}
        | {
            f"Elo against {opponent} (95 %)": format_elo(row, f"{name}_")
            for name, opponent in (("seed", "the start"), ("control", "human rows alone"))
        }
        for row in result["rows"]
    ]
    return {
        **describe_path(out),
        "best": dg.MetadataValue.path(result["best"]),
        "generation": result["generation"],
        "generations": result["generations"],
        "minutes": result["minutes"],
        **{name: value for name, value in figures.items() if value is not None},
        **_describe_teacher(out),
        "verdicts": make_table(rows),
        **_quote_games(out, result["generations"]),
        "summary": dg.MetadataValue.md(result["text"]),
    }


def _describe_teacher(tuned: Path) -> Metadata:
    """Return the text of a loop's last comparison of teachers; {} if it compared none."""
    choice = read_state(tuned).last_comparison
    return {} if choice is None else {"teacher": dg.MetadataValue.md(choice.text)}


def _select_elo(match: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the Elo figures of a match, except infinite ones; {} without a match."""
    if match is None:
        return {}
    return {name: match[name] for name in ELO_FIELDS if match[name] is not None}


def _quote_games(out: Path, generations: int) -> Metadata:
    """Return the first NUM_SAMPLE_GAMES games of the newest generation that has any, or {}."""
    for number in range(generations, 0, -1):
        pgn = locate_generation(out, number) / "games" / "games.pgn"
        if pgn.is_file():
            with pgn.open(encoding="utf-8", errors="replace") as file:
                games = [
                    game
                    for _ in range(NUM_SAMPLE_GAMES)
                    if (game := chess.pgn.read_game(file)) is not None
                ]
            text = "\n\n".join(map(str, games))
            return {"sample_games": dg.MetadataValue.md(f"```\n{text}\n```")}
    return {}


def describe_strength(out: Path, tuned: Path, result: Mapping[str, Any]) -> Metadata:
    """Return metadata of matches: Elo against the network that it started from, and all results."""
    match = result["against_seed"]
    return {
        "path": dg.MetadataValue.path(out),
        "tuned_checkpoint": dg.MetadataValue.path(tuned),
        **({"result": NOTHING_PROMOTED} if match is None else _select_elo(match)),
        **_describe_teacher(tuned),
        "matches": make_table(
            [
                {header: row[name] for name, header in MATCH_COLUMNS.items()}
                | {"Elo (95 %)": format_elo(row)}
                for row in result["rows"]
            ]
        ),
        "text": dg.MetadataValue.md(result["text"]),
    }


def describe_imitation(out: Path, folder: Path, result: Mapping[str, Any]) -> Metadata:
    """Return metadata of an imitation in `out`, whose report is in `folder`."""
    rows = [
        {"network": row["name"], "moves": moves}
        | {name: value for name, value in row[moves].items() if value is not None}
        for moves in ("all", "late")
        for row in result["networks"]
        if moves in row
    ]
    (figures,) = (row["all"] for row in result["networks"] if row["name"] == "imitation")
    return {
        "headline": result["headline"],
        "page": link_report(folder),
        **describe_path(out),
        **{name: figures[name] for name in ("top1", "top1_difference", "cross_entropy_difference")},
        "games": result["player"]["games"],
        "rating": result["player"]["rating"],
        "networks": make_table(rows),
    }
