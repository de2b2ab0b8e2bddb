"""What a loop leaves for its readers, all of it made from the state: written again whenever a stage is done.

best/               the network that is best so far: an ordinary checkpoint, whose card tells its lineage
generations.csv     a row a generation
events.jsonl        a line an event: starts of the loop, stages done, verdicts
curves.png          the curves over generations (pipeline/finetune/pictures.py)
elo.png             Elo against the seed alone
"""

import hashlib
import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from engine.json_files import parse_json
from engine.temporaries import abandoned
from pipeline.dataset.files.shards import publish
from pipeline.finetune.pictures import draw_curves, draw_elo
from pipeline.finetune.state import Record, State, checkpoint_of
from pipeline.storage.csv_text import csv_text

CSV, EVENTS, CURVES, ELO, BEST = "generations.csv", "events.jsonl", "curves.png", "elo.png", "best"


def refresh(state: State) -> None:
    """Write everything that follows from the state, the best network first."""
    promote(checkpoint_of(state.out, state.best), state.out / BEST, state.best, lineage(state))
    rows = [row(record, state) for record in state.generations]
    columns = list(dict.fromkeys(name for one in rows for name in one)) or ["generation"]
    _publish(state.out, CSV, csv_text(columns, rows).encode())
    _publish(state.out, EVENTS, "".join(json.dumps(line) + "\n" for line in events(state)).encode())
    if len(state.judged) > 1:
        _publish(state.out, CURVES, draw_curves(rows))
        _publish(state.out, ELO, draw_elo(rows))


def _publish(out: Path, name: str, data: bytes) -> None:
    publish(out, name, 0, lambda target: target.write(data))


def lineage(state: State) -> dict[str, Any]:
    """Tell where the best network comes from, and how strong it was found to be."""
    promoted = [one["number"] for one in state.judged if one["verdict"]["promoted"]] or [0]
    match = state.generations[state.best]["stages"].get("arena", {}).get("seed") if state.generations else None
    strength = {name: match[name] for name in ("games", "score", "elo", "elo_low", "elo_high")} if match else None
    return {"generation": state.best, "through": promoted, "against_seed": strength}


def promote(source: Path, target: Path, number: int, told: Mapping[str, Any]) -> None:
    """Make `target` the checkpoint `source`, in the order of model/checkpoint.py: whoever reads it finds a whole one.

    Its weights are named after the generation, so that no two networks' files ever have one name. Raises CheckpointError.
    """
    from model.checkpoint import CARD, NAMES, DamagedFileError, read_card, write_atomically

    card = read_card(source)
    entry = card["files"]["weights"]
    if NAMES["weights"].fullmatch(str(entry["name"])) is None:
        raise DamagedFileError(f"{source}: the card names no weights file")
    for left in abandoned(target):  # of a process that was killed while it wrote
        left.unlink(missing_ok=True)
    former = None
    with suppress(FileNotFoundError, ValueError, KeyError, TypeError):  # there is none yet, or a damaged one
        held = parse_json((target / CARD).read_bytes())
        former = held["files"]["weights"]["name"]
        if held["files"]["weights"]["sha256"] == entry["sha256"] and held["finetune"] == told:
            return
    data = (source / entry["name"]).read_bytes()
    if hashlib.sha256(data).hexdigest() != entry["sha256"]:
        raise DamagedFileError(f"{source / entry['name']} is not the file that the card describes")
    target.mkdir(parents=True, exist_ok=True)
    name = f"weights-{number}.safetensors"
    write_atomically(target / name, data)
    files = {"weights": {**entry, "name": name}}
    text = json.dumps({**card, "finished": True, "finetune": dict(told), "files": files}, indent=2, allow_nan=False)
    write_atomically(target / CARD, (text + "\n").encode())
    if former != name and NAMES["weights"].fullmatch(str(former)):
        (target / str(former)).unlink(missing_ok=True)


def row(record: Record, state: State) -> dict[str, Any]:
    """Return a generation's row: a column each for what the curves, the CSV and the dashboards show, None where unknown."""
    stages, judged = record["stages"], record.get("verdict")
    games, training = stages.get("explore", {}), stages.get("train", {})
    matches, human = stages.get("arena", {}), stages.get("eval", {})
    gate, seed = matches.get("best") or {}, matches.get("seed") or {}
    first = state.generations[0]["stages"].get("eval", {})
    row: dict[str, Any] = {"generation": record["number"], "verdict": word(judged)}
    row |= {name: games.get(name) for name in GAMES}
    row |= {"search_efficiency": games.get("timing", {}).get("search_efficiency")}
    row |= {"steps": training.get("step"), "training_positions": training.get("positions")}
    row |= {"train_loss": training.get("loss"), "train_reference_kl": training.get("reference_kl")}
    row |= {"gate_verdict": gate.get("sprt", {}).get("verdict"), "gate_llr": gate.get("sprt", {}).get("llr")}
    row |= {f"gate_{name}": gate.get(name) for name in MATCH} | {f"seed_{name}": seed.get(name) for name in MATCH}
    if record["number"] == 0:
        row |= {"seed_elo": 0.0, "seed_elo_low": 0.0, "seed_elo_high": 0.0}
    row |= {
        name: human.get(name) for name in ("top1", "top3", "cross_entropy", "value_brier", "kl_seed", "top1_untold")
    }
    known = row["top1"] is not None and first.get("top1") is not None
    row["top1_drop"] = round(first["top1"] - row["top1"], 6) if known else None
    for one in human.get("outside", []):
        row[f"elo against {one['b']}"] = one["elo"]
    for one in first.get("outside", []):
        row.setdefault(f"elo against {one['b']}", None)
    row |= {f"seconds_{name}": record["seconds"].get(name) for name in ("explore", "train", "arena", "eval")}
    return row | {"reason": judged["reason"] if judged else ""}


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


def word(judged: Mapping[str, Any] | None) -> str:
    """Return a verdict in one word."""
    if judged is None:
        return "under way"
    return "promoted" if judged["promoted"] else "undone" if judged["undone"] else "rejected"


def events(state: State) -> list[dict[str, Any]]:
    """List what happened, in the order of time."""
    found = []
    for run in state.runs:
        found.append({"time": run["began"], "event": "start", "device": run["device"], "host": run["host"]})
        if run.get("ended"):
            found.append({"time": run["ended"], "event": "stop", "why": run["why"]})
    for record in state.generations:
        for name, time in record["ended"].items():
            line = {"time": time, "event": name, "generation": record["number"]}
            if name == "verdict":
                line |= {"verdict": word(record["verdict"]), "reason": record["verdict"]["reason"]}
            else:
                line["seconds"] = record["seconds"].get(name, 0.0)
            found.append(line)
    return sorted(found, key=lambda line: str(line["time"]))  # stable, so what ended in one second stays in order


def table(state: State) -> str:
    """Write the generations as a Markdown table for people."""
    lines = ["| generation | verdict | games | Elo against the seed (95 %) | human top-1 | KL to the seed |"]
    lines.append("|---|---|---|---|---|---|")
    for record in state.judged:
        one = row(record, state)
        low, high = one["seed_elo_low"], one["seed_elo_high"]
        elo = "" if one["seed_elo"] is None else f"{one['seed_elo']:+.0f} [{low:+.0f}, {high:+.0f}]"
        shown = [f"{one[name]:.4f}" if one[name] is not None else "" for name in ("top1", "kl_seed")]
        lines.append(f"| {one['generation']} | {one['verdict']} | {one['games'] or ''} | {elo} | {' | '.join(shown)} |")
    return "\n".join(lines)


def reasons(state: State) -> list[str]:
    """Write a line for each verdict but the seed's: `generation 1: rejected: it is not better than the best ...`."""
    judged = [(record["number"], record["verdict"]) for record in state.judged if record["number"]]
    return [f"generation {number}: {word(verdict)}: {verdict['reason']}" for number, verdict in judged]
