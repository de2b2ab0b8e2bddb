"""List checkpoints, reports and matches, and draw the training curves of several runs."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from engine.json_files import parse_json
from model.card import CARD_FILE
from pipeline.errors import ConfigError
from pipeline.evaluation import charts
from pipeline.evaluation.render import mark_safe, render
from pipeline.storage.job_folder import (
    CHECKPOINT_KIND,
    IMITATION_REPORT_KIND,
    MATCH_KIND,
    REPORT_KIND,
    Kind,
    is_of_kind,
)
from pipeline.storage.preflight import require_writable_folder
from pipeline.storage.stores import publish_bytes
from pipeline.training.train import list_datasets

Run = dict[str, str]
"""Description of a run, with the keys `kind name date data length headline path`."""


def list_runs(*folders: Path) -> list[Run]:
    """Return a row for each checkpoint, report and match in or below the folders, newest first.

    `name` is the path within the folder, `path` begins with the folder as given, and `date` is the
    time of the last write in UTC (ISO 8601). If a file cannot be read, `headline` is the reason.
    The text comes from files, so it must be escaped.
    """
    runs = {run["path"]: run for folder in folders for run in _read_runs(folder)}
    return sorted(runs.values(), key=lambda run: (run["date"], run["path"]), reverse=True)


def _read_runs(folder: Path) -> Iterator[Run]:
    for root, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        place = Path(root)
        for kind, (title, file, describe) in RUN_KINDS.items():
            if file in files and is_of_kind(place, kind):
                inside = place.relative_to(folder).as_posix()
                name = place.resolve().name if place == folder else inside
                run: Run = {"kind": title, "name": name, "path": str(place)}
                yield run | _describe_result(place / file, describe)


def write_runs(runs: Sequence[Run], page: Path) -> None:
    """Write a page with the list of runs, and the training curves of the newest checkpoints.

    Raises ConfigError if `page` does not end in .html or cannot be written.
    """
    # imported here because Dagster's code server must not load torch
    from model.training.monitor import read_metrics

    if page.suffix != ".html":
        raise ConfigError(f"{page}: the name of the page must end in .html")
    require_writable_folder(page.parent)
    page.parent.mkdir(parents=True, exist_ok=True)
    names = [run["name"] for run in runs if run["kind"] == "checkpoint"]
    curves = {
        run["name"] if names.count(run["name"]) == 1 else run["path"]: entries
        for run in runs
        if run["kind"] == "checkpoint" and (entries := read_metrics(Path(run["path"])))
    }
    drawn = dict(list(curves.items())[: len(charts.SERIES_COLORS)])  # each run has its own color
    content = render(
        "runs.html",
        title="Runs",
        runs=runs,
        curves=mark_safe(charts.draw_training(drawn)) if drawn else "",
        left_out=len(curves) - len(drawn),
    )
    publish_bytes(page.parent, page.name, content)


def _describe_result(file: Path, describe: Callable[[Path, Any], Run]) -> Run:
    """Return the date of a run's result file and its description, or why it cannot be read."""
    run: Run = dict.fromkeys(("date", "data", "length"), "")
    try:
        written = datetime.fromtimestamp(file.stat().st_mtime, UTC)
        run["date"] = written.isoformat(timespec="seconds")
        return run | describe(file.parent, parse_json(file.read_bytes()))
    except OSError as error:
        reason = error.strerror or str(error)
    except (ValueError, KeyError, TypeError, AttributeError, IndexError):
        reason = "not a result of this version"
    return run | {"headline": f"{file.name} cannot be read: {reason}"}


def _describe_checkpoint(_: Path, card: Mapping[str, Any]) -> Run:
    metrics, minutes = card["metrics"], card["seconds"] / 60
    length = f"{card['step']:,} steps, {card['positions']:,} positions, {minutes:.1f} min"
    accuracy = "not validated"
    if "validation_top1" in metrics:
        accuracy = f"top-1 {100 * metrics['validation_top1']:.1f} % on the validation split"
    return {
        "data": ", ".join(dict.fromkeys(data["name"] for data in list_datasets(card["data"]))),
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
        "data": f"the newest games, from {report['held_out']} on",
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


RUN_KINDS: Mapping[Kind, tuple[str, str, Callable[[Path, Any], Run]]] = {
    CHECKPOINT_KIND: ("checkpoint", CARD_FILE, _describe_checkpoint),
    REPORT_KIND: ("report", "report.json", _describe_report),
    IMITATION_REPORT_KIND: ("report", "report.json", _describe_imitation),
    MATCH_KIND: ("match", "summary.json", _describe_match),
}
"""Title, result file, and function that describes the result, for each kind of run."""
