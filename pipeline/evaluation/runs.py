"""List the checkpoints, reports and matches in a folder."""

import os
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from engine.json_files import parse_json
from model.card import CARD
from pipeline.storage.job_folder import (
    CHECKPOINT,
    IMITATION_REPORT,
    MATCH,
    REPORT,
    Kind,
    is_of,
)
from pipeline.training.train import count_positions, list_datasets

Run = dict[str, str]


def list_runs(folder: Path) -> list[Run]:
    """Return a row for each checkpoint, report and match below a folder, newest first.

    A row has `kind name date data length headline path`, all as text: `name` is the path relative
    to the folder, `path` the absolute one, `date` the time of the last write in UTC (ISO 8601). If
    a file cannot be read, `headline` is the reason. Names and data come from files: escape them.
    """
    return sorted(_read_runs(folder), key=lambda run: (run["date"], run["name"]), reverse=True)


def _read_runs(folder: Path) -> Iterator[Run]:
    for root, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        place = Path(root)
        for kind, (title, file, describe) in KINDS.items():
            if file in names and is_of(place, kind):
                found: Run = {"kind": title, "name": place.relative_to(folder).as_posix()}
                yield found | _describe(place / file, describe) | {"path": str(place.resolve())}


def _describe(file: Path, describe: Callable[[Path, Any], Run]) -> Run:
    """Return the date of a result's file and its description."""
    row: Run = dict.fromkeys(("date", "data", "length"), "")
    try:
        written = datetime.fromtimestamp(file.stat().st_mtime, UTC)
        row["date"] = written.isoformat(timespec="seconds")
        return row | describe(file.parent, parse_json(file.read_bytes()))
    except OSError as error:
        reason = error.strerror or str(error)
    except (ValueError, KeyError, TypeError, AttributeError, IndexError):
        reason = "not a result of this version"
    return row | {"headline": f"{file.name} cannot be read: {reason}"}


def _describe_checkpoint(_: Path, card: Mapping[str, Any]) -> Run:
    metrics, minutes = card["metrics"], card["seconds"] / 60
    length = f"{card['step']:,} steps, {count_positions(dict(card)):,} positions, {minutes:.1f} min"
    accuracy = "not validated"
    if "validation_top1" in metrics:
        accuracy = f"top-1 {100 * metrics['validation_top1']:.1f} % in validation"
    return {
        "data": ", ".join(dict.fromkeys(one["name"] for one in list_datasets(card["data"]))),
        "length": length if card["finished"] else f"{length}, unfinished",
        "headline": f"{card['preset']['name']}: {accuracy}",
    }


def _describe_report(_: Path, report: Mapping[str, Any]) -> Run:
    first = report["reports"][0] if "reports" in report else report
    return {
        "data": str(first.get("measured_on", "")),
        "length": f"{first['positions']:,} positions of {first['games']:,} games",
        "headline": str(report["headline"]),
    }


def _describe_imitation(folder: Path, report: Mapping[str, Any]) -> Run:
    (measured,) = [row["all"] for row in report["networks"] if row["name"] == "imitation"]
    return {
        "data": f"games from {report['held_out']} on",
        "length": f"{measured['positions']:,} positions of {measured['games']:,} games",
        "headline": (folder / "report.txt").read_text("utf-8", "replace").splitlines()[0],
    }


def _describe_match(_: Path, summary: Mapping[str, Any]) -> Run:
    score, elo = str(summary["text"]).splitlines()[:2]
    return {
        "data": f"{summary['a']} against {summary['b']}",
        "length": f"{summary['games']:,} games",
        "headline": f"{elo.partition(', LOS')[0]}; {score}",
    }


KINDS: Mapping[Kind, tuple[str, str, Callable[[Path, Any], Run]]] = {
    CHECKPOINT: ("checkpoint", CARD, _describe_checkpoint),
    REPORT: ("report", "report.json", _describe_report),
    IMITATION_REPORT: ("report", "report.json", _describe_imitation),
    MATCH: ("match", "summary.json", _describe_match),
}
"""Title, result file and description of each kind of run."""
