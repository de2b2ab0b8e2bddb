"""The sensor `datasets_folder`: list new dumps, and show results of the command line in the UI."""

import json
import time
from pathlib import Path
from typing import Any

import dagster as dg

from engine.json_files import parse_json
from model.card import CARD_FILE
from pipeline.dataset.dataset import TRAINING_SET_FILE
from pipeline.dataset.files.columns import MANIFEST
from pipeline.defs.pages.metadata import describe_accuracy, describe_path, link_page
from pipeline.defs.resources import Datasets
from pipeline.defs.steps import DUMPS
from pipeline.evaluation.runs import list_runs

FINISHED = (dg.DagsterRunStatus.SUCCESS, dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELED)
UNFINISHED = [status for status in dg.DagsterRunStatus if status not in FINISHED]
SETTLE_SECONDS = 30.0
"""A file that has not changed for this many seconds counts as completely copied."""
Event = dg.AssetMaterialization | dg.AssetObservation
PATTERNS = (
    ("positions", f"positions/*/{MANIFEST}"),
    ("training_set", f"training_sets/*/{TRAINING_SET_FILE}"),
    ("checkpoint", f"checkpoints/*/{CARD_FILE}"),
    ("accuracy_report", "reports/*/report.json"),
    ("accuracy_report", "reports/*/*/report.json"),
)
"""Assets, and the files in the data folder that mark their finished results."""


@dg.sensor(
    minimum_interval_seconds=30,
    default_status=dg.DefaultSensorStatus.RUNNING,
    description="Add a partition of `dump` for each new file in datasets/dumps/, and record "
    "datasets, checkpoints and reports of the command line as materializations. Launches no runs.",
)
def datasets_folder(context: dg.SensorEvaluationContext, datasets: Datasets) -> dg.SensorResult:
    """Add partitions for new dumps, and record each version of a result unless a run has done so.

    The cursor lists the results that were looked at. Results that a run may still be writing wait
    until it has ended.
    """
    dumps = register(context.instance, datasets)
    found = {}
    for asset, pattern in PATTERNS:
        for file in datasets.path.glob(pattern):
            written = file.stat().st_mtime
            found[f"{file.relative_to(datasets.path)} {written}"] = (written, asset, file)
    seen = set(json.loads(context.cursor or "[]")) & found.keys()
    new = {name: found[name] for name in found.keys() - seen}
    limit = find_quiet_time(context.instance) if new else 0.0
    events = []
    for name, (written, asset, file) in sorted(new.items(), key=lambda item: item[1]):
        if written < limit:
            seen.add(name)
            if not is_recorded(context.instance, asset, file.parent, written):
                events += describe_result(datasets, asset, file)
    names = dumps + [str(event.metadata["path"].value) for event in events]
    return dg.SensorResult(
        asset_events=events,
        cursor=json.dumps(sorted(seen)),
        skip_reason=f"new dumps and results: {', '.join(names) or 'none'}",
    )


def register(instance: dg.DagsterInstance, datasets: Datasets) -> list[str]:
    """Add a partition for each new dump, and return the new keys."""
    new = sorted(set(datasets.dumps()) - set(instance.get_dynamic_partitions(DUMPS)))
    if new:
        instance.add_dynamic_partitions(DUMPS, new)
    return new


def find_quiet_time(instance: dg.DagsterInstance) -> float:
    """Return the Unix time before which every written result is complete.

    A later result may come from an unfinished run or an unfinished copy.
    """
    quiet = time.time() - SETTLE_SECONDS
    running = dg.RunsFilter(statuses=UNFINISHED)
    records = instance.get_run_records(running, limit=1, ascending=True)
    return min([quiet, *(record.create_timestamp.timestamp() for record in records)])


def is_recorded(instance: dg.DagsterInstance, asset: str, folder: Path, written: float) -> bool:
    """Return whether a folder was materialized after its result was written.

    Checkpoints are made by two assets.
    """
    for name in (asset, "imitation") if asset == "checkpoint" else (asset,):
        for record in instance.fetch_materializations(dg.AssetKey(name), limit=1000).records:
            assert record.asset_materialization is not None
            path = record.asset_materialization.metadata.get("path")
            if record.timestamp >= written and path is not None and path.value == str(folder):
                return True
    return False


def describe_result(datasets: Datasets, asset: str, file: Path) -> list[Event]:
    """Return the event that records a result, or [] if it is unfinished or unreadable.

    Positions that belong to no dump and networks that imitate a player are observations: they are
    no partition, and must not become the default input of other assets.
    """
    folder, partition = file.parent, None
    try:
        facts = describe_content(asset, folder, parse_json(file.read_bytes()))
    except (OSError, ValueError, KeyError, TypeError):
        return []
    if facts is None:
        return []
    facts = {"made_by": "the command line"} | facts | describe_path(folder)
    if asset == "positions" and folder.name in datasets.dumps():
        partition = folder.name
    elif asset == "positions" or (folder / "imitation").is_dir():
        return [dg.AssetObservation(asset, metadata=facts)]
    return [dg.AssetMaterialization(asset, metadata=facts, partition=partition)]


def describe_content(asset: str, folder: Path, content: Any) -> dict[str, Any] | None:
    """Return a result's figures for the page of its asset; None if it is unfinished."""
    match asset:
        case "positions":
            total, used = content["positions"]["total"], content["games"]["used"]
            return {"dagster/row_count": total, "games_used": used}
        case "training_set":
            return {"dagster/row_count": content["positions"]["train"]}
        case "accuracy_report":
            first = content.get("reports", [content])[0]
            headline = {"headline": str(content["headline"])}
            return describe_accuracy(first) | headline | {"page": link_page(folder)}
    rows = [row for row in list_runs(folder) if row["path"] == str(folder.resolve())]
    if not rows or not content["finished"]:
        return None
    return {name: rows[0][name] for name in ("headline", "data", "length")}
