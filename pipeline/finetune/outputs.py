"""Files of a loop for its readers, made from the state and rewritten whenever a stage is done.

best/               the best network so far: an ordinary checkpoint, whose card has its lineage
generations.csv     one row per generation
"""

import hashlib
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from engine.json_files import parse_json
from pipeline.evaluation.render import publish_bytes
from pipeline.finetune.state import STAGES, Generation, State, checkpoint_of
from pipeline.matches.match import format_elo
from pipeline.storage.tables import csv_text, markdown

CSV, BEST = "generations.csv", "best"
GAMES = (
    "games",
    "positions",
    "decisive_share",
    "mean_plies",
    "resignations",
    "played_on",
    "false_resignations",
)
MATCH = ("games", "score", "elo", "elo_low", "elo_high")
HUMAN = ("top1", "top3", "cross_entropy", "value_brier")


def refresh(out: Path, state: State) -> None:
    """Rewrite best/ and generations.csv from the state, the best network first."""
    promote(checkpoint_of(out, state.best), out / BEST, lineage(state))
    rows = [row(one) for one in state.generations]
    columns = list(dict.fromkeys(name for one in rows for name in one)) or ["generation"]
    publish_bytes(out, CSV, csv_text(columns, rows).encode())


def lineage(state: State) -> dict[str, Any]:
    """Return the best network's promotions, and its matches against both controls."""
    promoted = [one.number for one in state.decided if one.word == "promoted"] or [0]
    arena = state.generations[state.best].stages.get("arena", {}) if state.generations else {}
    strength = {
        f"against_{one}": {name: arena[one][name] for name in MATCH} if arena.get(one) else None
        for one in ("seed", "control")
    }
    return {"generation": state.best, "through": promoted, **strength}


def promote(source: Path, target: Path, origin: Mapping[str, Any]) -> None:
    """Replace the checkpoint `target` by a copy of `source`; `target` loads at any moment.

    `origin` goes into its card. Raises CheckpointError.
    """
    from model.checkpoint import CARD, DamagedFileError, delete_superseded, read_card, save_files

    card = read_card(source)
    entry = card["files"]["weights"]
    with suppress(FileNotFoundError, ValueError, KeyError, TypeError):  # none yet, or a damaged one
        held = parse_json((target / CARD).read_bytes())
        if held["files"]["weights"]["sha256"] == entry["sha256"] and held["finetune"] == origin:
            delete_superseded(target, held)  # again, if a process was killed before it did
            return
    data = (source / entry["name"]).read_bytes()
    if hashlib.sha256(data).hexdigest() != entry["sha256"]:
        raise DamagedFileError(f"{source / entry['name']} is not the file that the card describes")
    target.mkdir(parents=True, exist_ok=True)
    save_files(target, card | {"finished": True, "finetune": dict(origin)}, [("weights", data)])


def row(generation: Generation) -> dict[str, Any]:
    """Return a generation's row of generations.csv; None where a figure is unknown."""
    stages = generation.stages
    games, training, human = (stages.get(name, {}) for name in ("explore", "train", "eval"))
    gate, seed, control = (
        stages.get("arena", {}).get(name) or {} for name in ("best", "seed", "control")
    )
    found: dict[str, Any] = {"generation": generation.number, "verdict": generation.word}
    found |= {name: games.get(name) for name in GAMES}
    found |= {f"train_{name}": training.get(name) for name in ("step", "loss")}
    found |= {f"gate_{name}": gate.get("sprt", {}).get(name) for name in ("verdict", "llr")}
    found |= {f"gate_{name}": gate.get(name) for name in ("games", "score")}
    found |= {f"seed_{name}": seed.get(name) for name in MATCH}
    found |= {f"control_{name}": control.get(name) for name in MATCH}
    if generation.number == 0:
        found |= {"seed_elo": 0.0, "seed_elo_low": 0.0, "seed_elo_high": 0.0}
    found |= {name: human.get(name) for name in HUMAN}
    found |= {f"seconds_{name}": generation.seconds.get(name) for name in STAGES}
    return found | {"reason": generation.verdict.reason if generation.verdict else ""}


def table(rows: list[dict[str, Any]]) -> str:
    """Return the generations as a Markdown table."""
    shown = []
    for one in rows:
        gains = [format_elo(one, name) for name in ("seed_", "control_")]
        top1 = "" if one["top1"] is None else f"{one['top1']:.4f}"
        shown.append(
            [str(one["generation"]), one["verdict"], str(one["games"] or ""), *gains, top1]
        )
    titles = "Elo against the seed (95 %)|against human rows alone (95 %)"
    return markdown(f"generation|verdict|games|{titles}|human top-1", shown)


def reasons(rows: list[dict[str, Any]]) -> list[str]:
    """Return a line for each verdict on a candidate, with its reason."""
    return [
        f"generation {one['generation']}: {one['verdict']}: {one['reason']}"
        for one in rows
        if one["generation"]
    ]
