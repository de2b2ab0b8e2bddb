"""Metadata of tuned networks: verdicts, sample games, Elo, and imitation of a player."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import chess.pgn
import dagster as dg

from pipeline.defs.pages.metadata import Metadata, describe_path, link_page, table
from pipeline.finetune.state import NOTHING_PROMOTED, locate_generation, read_state
from pipeline.matches.match import ELO_FIELDS, format_elo

SAMPLE_GAMES = 4
"""Number of sample games shown."""
VERDICTS = ("generation", "verdict", "games", "top1", "reason")
MATCH = ("a", "b", "games", "wins", "draws", "losses", "score", "los")


def describe_finetuning(out: Path, result: Mapping[str, Any]) -> Metadata:
    """Return the metadata of a fine-tuning: figures, choice of teacher, verdicts and games."""
    numbers = _select_elo(result["against_seed"])
    numbers |= {name: result["eval"].get(name) for name in ("top1", "cross_entropy")}
    numbers["seed_top1"] = result["seed_eval"].get("top1")
    rows = [
        {name: "" if row[name] is None else row[name] for name in VERDICTS}
        | {
            f"Elo against {words} (95 %)": format_elo(row, f"{name}_")
            for name, words in (("seed", "the seed"), ("control", "human rows alone"))
        }
        for row in result["rows"]
    ]
    return {
        **describe_path(out),
        "best": dg.MetadataValue.path(result["best"]),
        "generation": result["generation"],
        "generations": result["generations"],
        "minutes": result["minutes"],
        **{name: value for name, value in numbers.items() if value is not None},
        **_show_teacher(out),
        "verdicts": table(rows),
        **_show_games(out, result["generations"]),
        "summary": dg.MetadataValue.md(result["text"]),
    }


def _show_teacher(tuned: Path) -> Metadata:
    """Return the loop's last choice of teacher; {} if the user chose it."""
    found = read_state(tuned).last_comparison
    return {} if found is None else {"teacher": dg.MetadataValue.md(found.text)}


def _select_elo(match: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the Elo figures of a match, {} if None; a clean sweep has only one bound."""
    if match is None:
        return {}
    return {name: match[name] for name in ELO_FIELDS if match[name] is not None}


def _show_games(out: Path, newest: int) -> Metadata:
    """Return the first SAMPLE_GAMES games of the newest generation that has any."""
    for number in range(newest, 0, -1):
        pgn = locate_generation(out, number) / "games" / "games.pgn"
        if pgn.is_file():
            with pgn.open(encoding="utf-8", errors="replace") as file:
                games = [
                    game
                    for _ in range(SAMPLE_GAMES)
                    if (game := chess.pgn.read_game(file)) is not None
                ]
            text = "\n\n".join(map(str, games))
            return {"sample_games": dg.MetadataValue.md(f"```\n{text}\n```")}
    return {}


def describe_strength(out: Path, tuned: Path, result: Mapping[str, Any]) -> Metadata:
    """Return the metadata of matches: Elo against the supervised checkpoint, and all results."""
    first = result["against_seed"]
    return {
        "path": dg.MetadataValue.path(out),
        "tuned": dg.MetadataValue.path(tuned),
        **({"seed": NOTHING_PROMOTED} if first is None else _select_elo(first)),
        **_show_teacher(tuned),
        "matches": table(
            [
                {name: row[name] for name in MATCH} | {"Elo (95 %)": format_elo(row)}
                for row in result["rows"]
            ]
        ),
        "text": dg.MetadataValue.md(result["text"]),
    }


def describe_imitation(out: Path, folder: Path, result: Mapping[str, Any]) -> Metadata:
    """Return the metadata of an imitation in `out`; its report is in `folder`, served by ui.py."""
    rows = [
        {"network": row["name"], "moves": part}
        | {name: value for name, value in row[part].items() if value is not None}
        for part in ("all", "late")
        for row in result["networks"]
        if part in row
    ]
    (figures,) = (row["all"] for row in result["networks"] if row["name"] == "imitation")
    return {
        "headline": result["headline"],
        "page": link_page(folder),
        **describe_path(out),
        **{name: figures[name] for name in ("top1", "top1_difference", "cross_entropy_difference")},
        "games": result["player"]["games"],
        "rating": result["player"]["rating"],
        "networks": table(rows),
    }
