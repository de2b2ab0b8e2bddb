"""The last lines of commands: what there is now, and the next command."""

import shlex
import shutil
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from textwrap import fill
from typing import Any

WIDTH = 80
"""Columns of sentences: those of a usual terminal."""


def command(*words: object) -> str:
    """Return the line that names the next command, to be copied into a shell."""
    return f"next: {shlex.join(['fianchetto', *map(str, words)])}"


def ingested(manifest: Mapping[str, Any], out: object, already: bool) -> str:
    """Describe a dataset in five lines."""
    games, positions = manifest["games"], manifest["positions"]
    dropped = ", ".join(f"{count:,} {reason}" for reason, count in games["dropped"].items())
    splits = ", ".join(f"{positions[name]:,} {name}" for name in ("train", "val", "test"))
    files = [entry for entry in manifest["files"] if entry["split"] is not None]
    return "\n".join(
        [
            f"{out} is complete already: nothing was done" if already else f"{out} is complete",
            f"{games['used']:,} of {games['read']:,} games are used" + (f"; dropped: {dropped}" if dropped else ""),
            f"{positions['total']:,} positions: {splits}",
            f"{len(files):,} shards, {manifest['bytes_per_position']:.1f} bytes per position; {out}/CARD.md describes them",
            command("train", "--positions", out, "--minutes", 15, "--out", "datasets/checkpoints/first"),
        ]
    )


def fetched(files: Mapping[str, Mapping[str, Any]], out: Path) -> str:
    """Describe what was fetched, a line for each file."""
    lines = [
        f"{out / name}: {entry['bytes'] / 1e6:,.1f} MB, "
        + ("verified" if entry["verified"] else "no published hash to compare with")
        + ("" if entry["fetched"] else "; complete already: nothing was fetched")
        for name, entry in files.items()
    ]
    dumps = [out / name for name in files]
    return "\n".join([*lines, command("ingest", *dumps, "--out", f"datasets/positions/{dumps[0].name.split('.')[0]}")])


def trained(card: Mapping[str, Any], out: Path, positions: Iterable[object]) -> str:
    """Describe a checkpoint in five lines."""
    metrics = card["metrics"]
    seen = {
        name.removeprefix("validation_"): value for name, value in metrics.items() if name.startswith("validation_")
    }
    measured = "no validation positions: nothing was measured on unseen games"
    if "top1" in seen:
        measured = f"on {seen['positions']:,.0f} unseen positions: top-1 {seen['top1']:.3f}"
        measured += f", cross-entropy {seen['cross_entropy']:.3f}" if "cross_entropy" in seen else ""
    message = str(card["message"])
    return "\n".join(
        [
            f"{out} is complete already: nothing was done" if "finished already" in message else message,
            f"{card['preset']['name']}: {card['parameters']:,} parameters, {card['step']:,} steps",
            measured,
            f"checkpoint: {out} (curves: {out}/metrics.jsonl)",
            command("report", "--checkpoint", out, "--positions", next(iter(positions))),
        ]
    )


def reported(report: Mapping[str, Any], checkpoint: Path, out: Path) -> str:
    """Describe a written report in five lines, and one more for each of what was measured besides."""
    low, high = report["top1_low"], report["top1_high"]
    within = "" if low is None else f" (95 %: {low:.3f} to {high:.3f})"
    besides = {"by rating": "rating_matrix", "losses": "rating_losses"}
    return "\n".join(
        [
            f"top-1 {report['top1']:.4f}{within} on {report['positions']:,} positions",
            f"top-3 {report['top3']:.4f}, top-5 {report['top5']:.4f}; the hand-written evaluator's top-1 is"
            f" {report['hand_written_top1']:.4f}, chance {report['chance_top1']:.4f}",
            f"rule: {report['rule']}",
            *(f"{title}: {report[name]}" for title, name in besides.items() if name in report),
            f"report: {out}/report.html (the same as text, JSON and picture beside it)",
            command("uci", "--checkpoint", checkpoint),
        ]
    )


def joined(result: Mapping[str, Any], datasets: Iterable[Mapping[str, Any]], out: Path) -> str:
    """Describe a training set in five lines."""
    listed = list(datasets)
    held = [entry["name"] for entry in listed if entry["held_out"]]
    both, positions = result["games_on_both_sides"], result["positions"]
    splits = ", ".join(f"{count:,} {name}" for name, count in positions.items())
    shared = ", ".join(f"{both[name]:,} of {name}" for name in ("val", "test", "latest"))
    return "\n".join(
        [
            f"{out}: {len(listed)} dataset{'' if len(listed) == 1 else 's'}, {', '.join(entry['name'] for entry in listed)}",
            f"held out whole: {', '.join(held) or 'none'}",
            f"positions: {splits}",
            f"games that train holds too: {shared}",
            command("train", "--positions", out, "--minutes", 15, "--out", "datasets/checkpoints/first"),
        ]
    )


def first_run(figures: Mapping[str, Any], minutes: float, sample: bool, report: Path, checkpoint: Path) -> str:
    """Describe what `make run` has made to somebody who sees it for the first time.

    `figures` are those of the accuracy report; `sample` says whether the games were the embedded ones, which the hand-written
    player made and therefore finds again.
    """
    said = [
        f"On {figures['positions']:,} positions of games that it never saw, the network's first choice is the move that was"
        f" played in {100 * figures['top1']:.1f} % (chance: {100 * figures['chance_top1']:.1f} %; the hand-written"
        f" evaluator: {100 * figures['hand_written_top1']:.1f} %)."
    ]
    if sample:
        told = (
            "These 2,000 games are a sample to try the installation with: this project's hand-written players made them. So"
            " the hand-written evaluator finds many of their moves, and a check may warn that it finds more than the network."
            " On 60,000 games of people, after 15 minutes of training, the network finds 48 % and the evaluator 37 %."
        )
        if minutes < 5:
            told += f" With the sample 45 to 50 % is usual after 90 s on two free cores; this was {60 * minutes:.0f} s."
        said += ["", told]
    lines = [fill(paragraph, WIDTH) for paragraph in said]
    active = [] if shutil.which("fianchetto") else [f"first:      source {Path(sys.prefix) / 'bin' / 'activate'}"]
    return "\n".join(
        [
            *lines,
            "",
            *active,
            f"report:     {report / 'report.html'}",
            f"play it:    {shlex.join(['fianchetto', 'uci', '--checkpoint', str(checkpoint)])}",
            "your games: fianchetto ingest YOUR.pgn --out datasets/positions/mine",
            "look at it: make ui, then open http://127.0.0.1:3000",
        ]
    )
