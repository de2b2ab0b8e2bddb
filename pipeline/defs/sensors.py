"""The sensor that watches `datasets/dumps/`; off until a user switches it on."""

import time

import dagster as dg

from pipeline.dataset.files.shards import MANIFEST
from pipeline.defs.assets import DUMP_VERSION, dumps, positions
from pipeline.defs.jobs import build_positions
from pipeline.defs.resources import SAMPLE, Datasets, version_of

FINISHED = (dg.DagsterRunStatus.SUCCESS, dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELED)
UNFINISHED = [status for status in dg.DagsterRunStatus if status not in FINISHED]
SETTLED = 30.0
"""Seconds that a file must not have changed, since it may still be being copied."""
RETRIES = {"dagster/max_retries": "2"}
"""Tag of a requested run: Dagster retries it if its process dies."""


@dg.sensor(
    job=build_positions,
    minimum_interval_seconds=30,
    description="Build positions of each file in datasets/dumps/ that has none, or has changed since they were made.",
)
def new_dumps(context: dg.SensorEvaluationContext, datasets: Datasets) -> dg.SensorResult | dg.SkipReason:
    """Request positions of each dump without current ones, once per version of the file.

    Files that arrived while nothing ran are found too. A run that failed is not requested again until the file changes.
    """
    assert dumps.name is not None
    requests, changing = [], 0
    for key, (file, *_) in datasets.dumps().items():
        if key == SAMPLE:
            continue
        try:
            newest, version = file.stat().st_mtime, version_of(file)
        except FileNotFoundError:  # removed since the folder was listed
            continue
        if newest > time.time() - SETTLED:
            changing += 1
        elif is_wanted(context.instance, datasets, key, version):
            requests.append(dg.RunRequest(run_key=f"{key}, {version}", partition_key=key, tags=RETRIES))
    if not requests:
        return dg.SkipReason(f"{datasets.path / 'dumps'} has no new dumps; {changing} of its files are changing")
    known = set(context.instance.get_dynamic_partitions(dumps.name))
    new = [str(request.partition_key) for request in requests if request.partition_key not in known]
    return dg.SensorResult(
        run_requests=requests, dynamic_partitions_requests=[dumps.build_add_request(new)] if new else []
    )


def is_wanted(instance: dg.DagsterInstance, datasets: Datasets, key: str, version: str) -> bool:
    """Return whether a dump has no positions of its version, and no run is making them."""
    if instance.get_run_records(dg.RunsFilter(tags={"dagster/partition": key}, statuses=UNFINISHED), limit=1):
        return False
    query = dg.AssetRecordsFilter(asset_key=positions.key, asset_partitions=[key])
    found = [record.asset_materialization for record in instance.fetch_materializations(query, limit=1).records]
    if not (datasets.positions(key) / MANIFEST).is_file() or not found or found[0] is None:
        return True
    recorded = found[0].metadata.get(DUMP_VERSION)
    return recorded is None or recorded.value != version
