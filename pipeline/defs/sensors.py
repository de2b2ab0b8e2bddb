"""The sensor that watches `datasets/dumps/`; off until a person switches it on."""

import time
from collections.abc import Iterable
from pathlib import Path

import dagster as dg
from dagster import DagsterRunStatus, RunsFilter
from dagster._core.storage.dagster_run import NOT_FINISHED_STATUSES
from dagster._core.storage.tags import PARTITION_NAME_TAG

from pipeline.dataset.files.shards import MANIFEST, read_manifest
from pipeline.defs.assets import DUMP_VERSION, dumps, positions
from pipeline.defs.jobs import build_positions, settings
from pipeline.defs.resources import Datasets, version_of
from pipeline.errors import DatasetError

SETTLED = 30.0
"""Seconds that a file must not have changed: one that is still being copied is left for a later look."""
PATIENCE = 600.0
"""Seconds after a run that came to nothing until the next is requested for the same file; doubled with each."""
VERSION_TAG = "fianchetto/dump_version"
"""Tag of a run: the file that it was requested for."""


@dg.sensor(
    job=build_positions,
    minimum_interval_seconds=30,
    description="Build positions of each file in datasets/dumps/ that has none, or has changed since they were made.",
)
def new_dumps(context: dg.SensorEvaluationContext, datasets: Datasets) -> dg.SensorResult | dg.SkipReason:
    """Turn each file in `datasets/dumps/` into positions that has none, or has changed since they were made.

    It goes by what is there, not by what is known: files that came while nothing ran are built too. A run that failed is
    requested again after 10, 20, 40 minutes and so on; one that a person cancelled is not, until the file changes.
    """
    assert dumps.name is not None
    now, requests, waiting, resting = time.time(), [], 0, 0
    for key, files in datasets.dropped().items():
        if not settled(files, now - SETTLED):
            waiting += 1
        elif (version := version_now(files)) and wanted(context.instance, datasets, key, files, version):
            number = attempt(context.instance, key, version, now)
            if number is None:
                resting += 1
                continue
            name, tags = f"{key}, {version}, {number}", {VERSION_TAG: version}
            config = settings(datasets.positions(key))
            requests.append(dg.RunRequest(run_key=name, partition_key=key, run_config=config, tags=tags))
    if not requests:
        left = f"{waiting} still being written, {resting} under way or failed"
        return dg.SkipReason(f"nothing to build in {datasets.path / 'dumps'} ({left})")
    known = set(context.instance.get_dynamic_partitions(dumps.name))
    new = [str(request.partition_key) for request in requests if request.partition_key not in known]
    return dg.SensorResult(
        run_requests=requests, dynamic_partitions_requests=[dumps.build_add_request(new)] if new else []
    )


def settled(files: Iterable[Path], limit: float) -> bool:
    """Return whether files were last written before the time `limit`; one that has gone meanwhile was not."""
    try:
        return all(file.stat().st_mtime < limit for file in files)
    except FileNotFoundError:
        return False


def version_now(files: Iterable[Path]) -> str | None:
    """Return the version of a dump's files; None where one has gone meanwhile."""
    try:
        return version_of(files)
    except FileNotFoundError:
        return None


def wanted(instance: dg.DagsterInstance, datasets: Datasets, key: str, files: list[Path], version: str) -> bool:
    """Return whether a dump has no positions, here or by Dagster's books, or has changed since they were made."""
    folder = datasets.positions(key)
    if not (folder / MANIFEST).is_file():
        return True
    asked = dg.AssetRecordsFilter(asset_key=positions.key, asset_partitions=[key])
    found = [record.asset_materialization for record in instance.fetch_materializations(asked, limit=1).records]
    if not found or found[0] is None:
        return True
    recorded = found[0].metadata.get(DUMP_VERSION)
    return recorded.value != version if recorded is not None else not _made_of(folder, files)


def _made_of(folder: Path, files: list[Path]) -> bool:
    """Return whether positions of before versions were recorded are of these files, by name, size and time."""
    try:
        made = [(source["name"], source["bytes"]) for source in read_manifest(folder)["sources"]]
        facts = [(file.name, file.stat().st_size) for file in files]
        return made == facts and all(file.stat().st_mtime <= (folder / MANIFEST).stat().st_mtime for file in files)
    except (DatasetError, FileNotFoundError, KeyError):
        return False


def attempt(instance: dg.DagsterInstance, key: str, version: str, now: float) -> int | None:
    """Return how many runs were requested for a version of a dump before; None where it is not yet time for another."""
    partition = {PARTITION_NAME_TAG: key}
    if instance.get_run_records(RunsFilter(tags=partition, statuses=NOT_FINISHED_STATUSES), limit=1):
        return None
    before = instance.get_run_records(RunsFilter(tags=partition | {VERSION_TAG: version}))
    if not before:
        return 0
    if before[0].dagster_run.status == DagsterRunStatus.CANCELED:
        return None
    ended = before[0].end_time or before[0].update_timestamp.timestamp()
    return len(before) if now - ended >= PATIENCE * 2 ** (len(before) - 1) else None
