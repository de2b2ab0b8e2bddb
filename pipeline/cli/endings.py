"""The last lines that commands print: key figures of the result, and the next command."""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pipeline.samples.shipped import EMBEDDED_CHECKPOINT, MIN_SCRATCH_POSITIONS, relative_to_cwd


def suggest_command(*words: object) -> str:
    """Return a line that suggests the next command, ready to paste into a shell."""
    return f"next: {shlex.join(['fianchetto', *map(str, words)])}"


def describe_dataset(manifest: Mapping[str, Any], out: object, was_complete: bool) -> str:
    """Describe a dataset in five lines, plus the first dropped game for each reason."""
    games, positions = manifest["games"], manifest["positions"]
    used = f"{games['used']:,} of {games['read']:,} games are used"
    if games["dropped"]:
        reasons = [f"{count:,} {reason}" for reason, count in games["dropped"].items()]
        used += f"; dropped: {', '.join(reasons)}"
    splits = ", ".join(f"{positions[name]:,} {name}" for name in ("train", "val", "test"))
    shards = sum(entry["split"] is not None for entry in manifest["files"])
    lines = [
        f"{out} is complete already: nothing was done" if was_complete else f"{out} is complete",
        used,
        *(
            f"  first {reason}: {first['where']}: {first['text']}"
            for reason, first in manifest.get("examples", {}).items()
        ),
        f"{positions['total']:,} positions: {splits}",
        f"{shards:,} shards, {manifest['bytes_per_position']:.1f} bytes per position; "
        f"{out}/CARD.md describes them",
        suggest_training(out, positions["train"]),
    ]
    return "\n".join(lines)


def suggest_training(dataset: object, train_positions: int) -> str:
    """Return a line that suggests how to train on a dataset of this size.

    With few positions, training starts from the embedded network (docs/guides/own_games.md).
    """
    options: tuple[object, ...] = ("--minutes", 15)
    if train_positions < MIN_SCRATCH_POSITIONS:
        start = ("--start", relative_to_cwd(EMBEDDED_CHECKPOINT))
        options = (*start, "--minutes", 5, "--learning-rate", "0.0005")
    return suggest_command(
        "train", "--positions", dataset, *options, "--out", "datasets/checkpoints/first"
    )


def describe_downloads(files: Mapping[str, Mapping[str, Any]], out: Path) -> str:
    """Describe downloaded files, one line each, and suggest how to ingest them."""
    lines = []
    for name, entry in files.items():
        line = f"{out / name}: {entry['bytes'] / 1e6:,.1f} MB, "
        line += "verified" if entry["verified"] else "not verified: no published hash"
        lines.append(line + ("" if entry["fetched"] else "; already complete: nothing was fetched"))
    dumps = [out / name for name in files]
    dataset = f"datasets/positions/{dumps[0].name.split('.')[0]}"
    return "\n".join([*lines, suggest_command("ingest", *dumps, "--out", dataset)])


def describe_checkpoint(card: Mapping[str, Any], out: Path, datasets: Sequence[object]) -> str:
    """Describe a checkpoint that was trained on `datasets`, in five lines."""
    metrics, message = card["metrics"], str(card["message"])
    if "finished already" in message:
        message = f"{out} is complete already: nothing was done"
    measured = "accuracy was not measured: there are no validation positions"
    if "validation_top1" in metrics:
        count, top1 = metrics["validation_positions"], metrics["validation_top1"]
        measured = f"on {count:,.0f} positions of the validation split: top-1 {top1:.3f}"
        if "validation_cross_entropy" in metrics:
            measured += f", cross-entropy {metrics['validation_cross_entropy']:.3f}"
    lines = [
        message,
        f"{card['preset']['name']}: {card['parameters']:,} parameters, {card['step']:,} steps",
        measured,
        f"checkpoint: {out} (curves: {out}/metrics.jsonl)",
        suggest_command(
            *("report", "--checkpoint", f"{relative_to_cwd(EMBEDDED_CHECKPOINT)},{out}"),
            *("--positions", datasets[0], "--out", f"datasets/reports/{out.name}"),
        ),
    ]
    return "\n".join(lines)


def describe_report(
    result: Mapping[str, Any], checkpoints: Sequence[Path], out: Path | None
) -> str:
    """Describe the result of `reports` in five lines, plus a table if there are several networks.

    The rating matrix and the human search of the last network are added if they were measured.
    """
    from pipeline.evaluation.render import format_human_search, format_reports

    report = result["reports"][-1]
    lines = [result["headline"], result["compared"], f"rule: {report['rule']}"]
    if result["differences"]:
        lines.append(format_reports(result))
    if "rating_matrix" in report:
        lines.append(f"by rating: {report['rating_matrix']}")
    if "human_search" in report:
        lines.append(format_human_search(report["human_search"]))
    page = f"{out}/report.html (open it in a browser; also as text and JSON)" if out else None
    lines.append(f"report: {page or '--out DIR writes a page with all figures'}")
    own = [path for path in checkpoints if path.resolve() != EMBEDDED_CHECKPOINT] or checkpoints
    return "\n".join([*lines, suggest_command("play", "--checkpoint", own[-1])])
