"""The closing lines of commands: the result in a few figures, and the next command."""

import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import fill
from typing import Any

from pipeline.samples.shipped import EMBEDDED, SCRATCH_POSITIONS, from_here

WIDTH = 80
"""Line width of sentences."""


def next_command(*words: object) -> str:
    """Return a line with the next command, ready to paste into a shell."""
    return f"next: {shlex.join(['fianchetto', *map(str, words)])}"


def describe_dataset(manifest: Mapping[str, Any], out: object, already: bool) -> str:
    """Describe a dataset in five lines, and the first game of each reason for dropping."""
    games, positions = manifest["games"], manifest["positions"]
    dropped = ", ".join(f"{count:,} {reason}" for reason, count in games["dropped"].items())
    splits = ", ".join(f"{positions[name]:,} {name}" for name in ("train", "val", "test"))
    shards = sum(entry["split"] is not None for entry in manifest["files"])
    examples = [
        f"  first {reason}: {first['where']}: {first['text']}"
        for reason, first in manifest.get("examples", {}).items()
    ]
    lines = [
        f"{out} is complete already: nothing was done" if already else f"{out} is complete",
        f"{games['used']:,} of {games['read']:,} games are used"
        + (f"; dropped: {dropped}" if dropped else ""),
        *examples,
        f"{positions['total']:,} positions: {splits}",
        f"{shards:,} shards, {manifest['bytes_per_position']:.1f} bytes per position; "
        f"{out}/CARD.md describes them",
    ]
    return "\n".join([*lines, next_training(out, positions["train"])])


def next_training(positions: object, count: int) -> str:
    """Return a line with the command that trains on a dataset with so many train positions.

    With few, it starts from the embedded network (docs/guides/own_games.md).
    """
    how: tuple[object, ...] = ("--minutes", 15)
    if count < SCRATCH_POSITIONS:
        how = ("--start", from_here(EMBEDDED), "--minutes", 5, "--learning-rate", "0.0005")
    return next_command(
        "train", "--positions", positions, *how, "--out", "datasets/checkpoints/first"
    )


def describe_downloads(files: Mapping[str, Mapping[str, Any]], out: Path) -> str:
    """Describe downloaded files, one line each."""
    lines = [
        f"{out / name}: {entry['bytes'] / 1e6:,.1f} MB, "
        + ("verified" if entry["verified"] else "not verified: no published hash")
        + ("" if entry["fetched"] else "; already complete, nothing was fetched")
        for name, entry in files.items()
    ]
    dumps = [out / name for name in files]
    dataset = f"datasets/positions/{dumps[0].name.split('.')[0]}"
    return "\n".join([*lines, next_command("ingest", *dumps, "--out", dataset)])


def describe_checkpoint(card: Mapping[str, Any], out: Path, positions: Sequence[object]) -> str:
    """Describe a checkpoint in five lines."""
    metrics, message = card["metrics"], str(card["message"])
    measured = "accuracy was not measured: there are no validation positions"
    if "validation_top1" in metrics:
        count, top1 = metrics["validation_positions"], metrics["validation_top1"]
        measured = f"on {count:,.0f} unseen positions: top-1 {top1:.3f}"
        if "validation_cross_entropy" in metrics:
            measured += f", cross-entropy {metrics['validation_cross_entropy']:.3f}"
    lines = [
        f"{out} is complete already: nothing was done"
        if "finished already" in message
        else message,
        f"{card['preset']['name']}: {card['parameters']:,} parameters, {card['step']:,} steps",
        measured,
        f"checkpoint: {out} (curves: {out}/metrics.jsonl)",
    ]
    return "\n".join(
        [*lines, next_command("report", "--checkpoint", out, "--positions", positions[0])]
    )


def describe_report(report: Mapping[str, Any], checkpoint: Path, out: Path | None) -> str:
    """Describe a report in five lines, plus those of the matrix of ratings and of human search."""
    from pipeline.evaluation.render import human_search_text

    lines = [
        report["headline"],
        report["compared"],
        f"rule: {report['rule']}",
        *([f"by rating: {report['rating_matrix']}"] if "rating_matrix" in report else []),
        *([human_search_text(report["human_search"])] if "human_search" in report else []),
        f"report: {out}/report.html (also as text and JSON)"
        if out
        else "report: --out DIR writes a page with all figures",
    ]
    return "\n".join([*lines, next_command("uci", "--checkpoint", checkpoint)])


def describe_first_run(
    figures: Mapping[str, Any], sample: bool, report: Path, checkpoint: Path
) -> str:
    """Describe the result of `make run`.

    `figures` are those of the accuracy report; `sample` says whether the games were the embedded
    sample.
    """
    sentences = f"{figures['headline']} {figures['compared']}"
    if sample:
        sentences += (
            " The games are the embedded sample: 2,000 games that the embedded network played."
        )
    activate = [f"first:      source {Path(sys.prefix) / 'bin' / 'activate'}"]
    lines = [
        fill(sentences, WIDTH),
        "",
        *([] if shutil.which("fianchetto") else activate),
        f"report:     {report / 'report.html'}",
        f"play it:    {shlex.join(['fianchetto', 'uci', '--checkpoint', str(checkpoint)])}",
        "your games: fianchetto ingest YOUR.pgn --out datasets/positions/mine",
        "look at it: make ui, then open http://127.0.0.1:3000",
    ]
    return "\n".join(lines)
