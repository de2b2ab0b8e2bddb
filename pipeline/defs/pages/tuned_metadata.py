"""Metadata of the self-play assets: curves, verdicts, sample games, Elo."""

import base64
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import dagster as dg

from pipeline.defs.pages import pictures
from pipeline.defs.pages.metadata import Metadata, table
from pipeline.evaluation.page.games import read_games
from pipeline.finetune.outputs import CSV, CURVES
from pipeline.finetune.pictures import BOARDS, SAMPLES, VIEWER, playable
from pipeline.finetune.state import NOTHING_PROMOTED, generation
from pipeline.finetune.strength_page import PAGE

SHOWN_LINKS = 4
"""Games that are linked to a page to replay them."""
ELO = ("elo", "elo_low", "elo_high")
VERDICTS = ("generation", "verdict", "games", "seed_elo", "seed_elo_low", "seed_elo_high", "top1", "kl_seed", "reason")
MATCH = ("a", "b", "games", "wins", "draws", "losses", "score", "elo", "elo_low", "elo_high", "los")


def describe_tuned(out: Path, result: Mapping[str, Any]) -> Metadata:
    """Return the metadata of a fine-tuning: figures of the best network, curves, a row per generation, sample games."""
    match, best = result["against_seed"] or {}, result["eval"]
    numbers = {name: match.get(name) for name in ELO}
    numbers |= {name: best.get(name) for name in ("top1", "cross_entropy", "kl_seed")}
    numbers["seed_top1"] = result["seed_eval"].get("top1")
    curves = out / CURVES
    rows = [{name: "" if row[name] is None else row[name] for name in VERDICTS} for row in result["rows"]]
    return {
        "path": dg.MetadataValue.path(out),
        "best": dg.MetadataValue.path(result["best"]),
        "dagster/uri": out.as_uri(),
        "generation": result["generation"],
        "generations": result["generations"],
        "minutes": result["minutes"],
        **{name: value for name, value in numbers.items() if value is not None},
        **({"curves": dg.MetadataValue.md(pictures.png(curves, "curves by generation"))} if curves.exists() else {}),
        "verdicts": table(rows),
        "csv": dg.MetadataValue.path(out / CSV),
        **_show_games(out, result["generations"]),
        "summary": dg.MetadataValue.md(result["text"]),
    }


def _show_games(out: Path, newest: int) -> Metadata:
    """Return the newest generation's sample games: the final boards and the PGN."""
    for number in range(newest, 0, -1):
        folder = generation(out, number) / "eval"
        if (folder / BOARDS).exists():
            svg = base64.b64encode((folder / BOARDS).read_bytes()).decode()
            picture = f"![games of generation {number}](data:image/svg+xml;base64,{svg})"
            text = (folder / SAMPLES).read_text(encoding="utf-8")
            links = [link for game in read_games(folder / SAMPLES, SHOWN_LINKS) if (link := playable(game))]
            replay = ", ".join(f"[game {at}]({link})" for at, link in enumerate(links, 1))
            return {
                "sample_games": dg.MetadataValue.md(f"{picture}\n\nReplay: {replay}\n\n```\n{text}```"),
                "sample_games_page": dg.MetadataValue.path(folder / VIEWER),
            }
    return {}


def describe_strength(out: Path, tuned: Path, result: Mapping[str, Any]) -> Metadata:
    """Return the metadata of matches: Elo against the supervised checkpoint, if a network was promoted, and a table."""
    first, judged = result["against_seed"], result.get("judge")
    return {
        "page": dg.MetadataValue.path(out / PAGE),
        "path": dg.MetadataValue.path(out),
        "tuned": dg.MetadataValue.path(tuned),
        **({"seed": NOTHING_PROMOTED} if first is None else {name: first[name] for name in ELO}),
        "matches": table([{name: row[name] for name in MATCH} for row in result["rows"]]),
        **({"judged": table(judged["players"])} if judged else {}),
        "text": dg.MetadataValue.md(result["text"]),
    }
