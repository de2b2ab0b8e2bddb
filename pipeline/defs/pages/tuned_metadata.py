"""What a person reads on the pages of the self-play assets: curves, verdicts, sample games, Elo."""

import base64
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import dagster as dg

from pipeline.defs.pages import pictures
from pipeline.defs.pages.metadata import AT_A_GLANCE, Metadata, at_a_glance, table
from pipeline.evaluation.page.games import read_games
from pipeline.finetune.outputs import CSV, CURVES
from pipeline.finetune.pictures import BOARDS, SAMPLES, VIEWER, playable
from pipeline.finetune.state import NOTHING_PROMOTED, generation
from pipeline.finetune.strength_page import PAGE

SHOWN_LINKS = 4
"""Games that are linked to a page to play through."""
ELO = ("elo", "elo_low", "elo_high")
SHOWN = ("generation", "verdict", "games", "seed_elo", "seed_elo_low", "seed_elo_high", "top1", "kl_seed", "reason")


def of_tuned(out: Path, result: Mapping[str, Any]) -> Metadata:
    """Describe a loop by its result: figures of the best network, curves, a row a generation, the newest games."""
    match, best, seed = result["against_seed"] or {}, result["eval"], result["seed_eval"]
    numbers = {name: match.get(name) for name in ELO}
    numbers |= {name: best.get(name) for name in ("top1", "cross_entropy", "kl_seed")} | {"seed_top1": seed.get("top1")}
    curves = out / CURVES
    drawn = {"curves": dg.MetadataValue.md(pictures.png(curves, "curves over generations"))} if curves.exists() else {}
    rows = [{name: "" if row[name] is None else row[name] for name in SHOWN} for row in result["rows"]]
    elo = [row["seed_elo"] for row in result["rows"] if row["seed_elo"] is not None]
    words = f"generation {result['generation']} of {result['generations']} is the best"
    words += f", {_elo(match)} against the seed" if match else ""
    return {
        AT_A_GLANCE: at_a_glance(words, pictures.thumbnail(elo, "Elo against the seed by generation")),
        "path": dg.MetadataValue.path(out),
        "best": dg.MetadataValue.path(result["best"]),
        "dagster/uri": out.as_uri(),
        "generation": result["generation"],
        "generations": result["generations"],
        "minutes": result["minutes"],
        **{name: value for name, value in numbers.items() if value is not None},
        **drawn,
        "verdicts": table(rows),
        "csv": dg.MetadataValue.path(out / CSV),
        **sample_games(out, result["generations"]),
        "summary": dg.MetadataValue.md(result["text"]),
    }


def sample_games(out: Path, newest: int) -> Metadata:
    """Show the newest generation's sample games: the boards that they ended on, and their PGN."""
    for number in range(newest, 0, -1):
        folder = generation(out, number) / "eval"
        if (folder / BOARDS).exists():
            svg = base64.b64encode((folder / BOARDS).read_bytes()).decode()
            picture = f"![games of generation {number}](data:image/svg+xml;base64,{svg})"
            text = (folder / SAMPLES).read_text(encoding="utf-8")
            links = [link for game in read_games(folder / SAMPLES, SHOWN_LINKS) if (link := playable(game))]
            play = ", ".join(f"[game {at}]({link})" for at, link in enumerate(links, 1))
            return {
                "sample_games": dg.MetadataValue.md(f"{picture}\n\nTo play through: {play}\n\n```\n{text}```"),
                "sample_games_page": dg.MetadataValue.path(folder / VIEWER),
            }
    return {}


def of_strength(out: Path, tuned: Path, result: Mapping[str, Any]) -> Metadata:
    """Describe a ladder: Elo against the seed as numbers, or that nothing was promoted, and the table."""
    first = result["against_seed"]
    numbers = {"seed": NOTHING_PROMOTED} if first is None else {name: first[name] for name in ELO}
    columns = ("a", "b", "games", "wins", "draws", "losses", "score", "elo", "elo_low", "elo_high", "los")
    scores = [row["score"] for row in result["rows"]]
    words = NOTHING_PROMOTED if first is None else f"{_elo(first)} against the seed in {first['games']} games"
    judged = result.get("judge")
    return {
        AT_A_GLANCE: at_a_glance(words, pictures.thumbnail(scores, "score of each match", bars=True)),
        "page": dg.MetadataValue.path(out / PAGE),
        "path": dg.MetadataValue.path(out),
        "tuned": dg.MetadataValue.path(tuned),
        **numbers,
        "ladder": table([{name: row[name] for name in columns} for row in result["rows"]]),
        **({"judged": table(judged["players"])} if judged else {}),
        "text": dg.MetadataValue.md(result["text"]),
    }


def _elo(match: Mapping[str, Any]) -> str:
    """Return an Elo difference with its interval."""
    return f"Elo {match['elo']:+.0f} ({match['elo_low']:+.0f} to {match['elo_high']:+.0f})"
