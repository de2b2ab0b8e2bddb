"""The sensor `datasets_folder`: add partitions of new dumps, record results of the command line."""

import json
import time
from pathlib import Path
from typing import Any

import dagster as dg

from engine.json_files import parse_json
from model.card import CARD_FILE
from pipeline.dataset.dataset import TRAINING_SET_FILE
from pipeline.dataset.files.columns import MANIFEST
from pipeline.defs.pages.metadata import describe_accuracy, describe_path, link_report
from pipeline.defs.resources import DataFolder
from pipeline.defs.steps import DUMP_PARTITIONS
from pipeline.evaluation.runs import list_runs

FINISHED_STATUSES = (
    dg.DagsterRunStatus.SUCCESS,
    dg.DagsterRunStatus.FAILURE,
    dg.DagsterRunStatus.CANCELED,
)
UNFINISHED_STATUSES = [status for status in dg.DagsterRunStatus if status not in FINISHED_STATUSES]
SETTLE_SECONDS = 30.0
"""Seconds without a change after which a file counts as completely copied."""
Event = dg.AssetMaterialization | dg.AssetObservation
RESULT_PATTERNS = (
    ("positions", f"positions/*/{MANIFEST}"),
    ("training_set", f"training_sets/*/{TRAINING_SET_FILE}"),
    ("checkpoint", f"checkpoints/*/{CARD_FILE}"),
    ("accuracy_report", "reports/*/report.json"),
    ("accuracy_report", "reports/*/*/report.json"),
)
"""Asset, and the files in the data folder that mark a finished result of it."""


@dg.sensor(
    minimum_interval_seconds=30,
    default_status=dg.DefaultSensorStatus.RUNNING,
    description="Add a partition of `dump` for each new file in datasets/dumps/, and record "
    "datasets, checkpoints and reports that were made on the command line. Launch no runs.",
)
def datasets_folder(context: dg.SensorEvaluationContext, datasets: DataFolder) -> dg.SensorResult:
    """Add partitions of new dumps, and record each version of a result unless a run has done so.

    The cursor lists the results that were examined. A result that a run may still be writing is
    examined after the run has ended.
    """
    dumps = register_dumps(context.instance, datasets)
    results = {}
    for asset, pattern in RESULT_PATTERNS:
        for file in datasets.path.glob(pattern):
            mtime = file.stat().st_mtime
            results[f"{file.relative_to(datasets.path)} {mtime}"] = (mtime, asset, file)
    examined = set(json.loads(context.cursor or "[]")) & results.keys()
    new = {name: results[name] for name in results.keys() - examined}
    complete_before = find_quiet_time(context.instance) if new else 0.0
    events = []
    for name, (mtime, asset, file) in sorted(new.items(), key=lambda item: item[1]):
        if mtime < complete_before:
            examined.add(name)
            if not is_recorded(context.instance, asset, file.parent, mtime):
                events += describe_result(datasets, asset, file)
    names = dumps + [str(event.metadata["path"].value) for event in events]
    return dg.SensorResult(
        asset_events=events,
        cursor=json.dumps(sorted(examined)),
        skip_reason=f"new dumps and results: {', '.join(names) or 'none'}",
    )


def register_dumps(instance: dg.DagsterInstance, datasets: DataFolder) -> list[str]:
    """Add a partition for each new dump, and return the new keys."""
    new = sorted(set(datasets.list_dumps()) - set(instance.get_dynamic_partitions(DUMP_PARTITIONS)))
    if new:
        instance.add_dynamic_partitions(DUMP_PARTITIONS, new)
    return new


def find_quiet_time(instance: dg.DagsterInstance) -> float:
    """Return the Unix time before which every written result is complete.

    Later results may belong to an unfinished run or an unfinished copy.
    """
    settled = time.time() - SETTLE_SECONDS
    unfinished = dg.RunsFilter(statuses=UNFINISHED_STATUSES)
    records = instance.get_run_records(unfinished, limit=1, ascending=True)
    return min([settled, *(record.create_timestamp.timestamp() for record in records)])


def is_recorded(instance: dg.DagsterInstance, asset: str, folder: Path, mtime: float) -> bool:
    """Return whether Dagster has a materialization of a folder that is newer than its result."""
    # `imitation` makes checkpoints too
    for name in (asset, "imitation") if asset == "checkpoint" else (asset,):
        for record in instance.fetch_materializations(dg.AssetKey(name), limit=1000).records:
            assert record.asset_materialization is not None
            path = record.asset_materialization.metadata.get("path")
            if record.timestamp >= mtime and path is not None and path.value == str(folder):
                return True
    return False


def describe_result(datasets: DataFolder, asset: str, file: Path) -> list[Event]:
    """Return the event that records a result, or [] if it is unfinished or unreadable.

    Positions that belong to no dump and networks that imitate a player become observations: they
    have no partition, and must not become the default input of other assets.
    """
    folder, partition = file.parent, None
    try:
        figures = describe_content(asset, folder, parse_json(file.read_bytes()))
    except (OSError, ValueError, KeyError, TypeError):
        return []
    if figures is None:
        return []
    metadata = {"made_by": "the command line"} | figures | describe_path(folder)
    if asset == "positions" and folder.name in datasets.list_dumps():
        partition = folder.name
    elif asset == "positions" or (folder / "imitation").is_dir():
        return [dg.AssetObservation(asset, metadata=metadata)]
    return [dg.AssetMaterialization(asset, metadata=metadata, partition=partition)]


def describe_content(asset: str, folder: Path, content: Any) -> dict[str, Any] | None:
    """Return the figures of a result from the content of its file; None if it is unfinished."""
    match asset:
        case "positions":
            row_count, used = content["positions"]["total"], content["games"]["used"]
            return {"dagster/row_count": row_count, "games_used": used}
        case "training_set":
            return {"dagster/row_count": content["positions"]["train"]}
        case "accuracy_report":
            first_report = content.get("reports", [content])[0]
            headline = {"headline": str(content["headline"])}
            return describe_accuracy(first_report) | headline | {"page": link_report(folder)}
    rows = [row for row in list_runs(folder) if row["path"] == str(folder.resolve())]
    if not rows or not content["finished"]:
        return None
    return {name: rows[0][name] for name in ("headline", "data", "length")}
