"""Jobs, the nightly schedule of checks, and the sensors that watch for new dumps."""

import time

import dagster as dg

from pipeline.dataset.files.columns import MANIFEST
from pipeline.defs.assets import (
    DUMP_VERSION,
    accuracy_report,
    checkpoint,
    dump,
    leaderboard,
    positions,
    training_set,
)
from pipeline.defs.resources import SAMPLE_KEY, Datasets, version_of
from pipeline.defs.steps import DUMPS
from pipeline.defs.tuned import strength_report, tuned_checkpoint

FINISHED = (dg.DagsterRunStatus.SUCCESS, dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELED)
UNFINISHED = [status for status in dg.DagsterRunStatus if status not in FINISHED]
SETTLE_SECONDS = 30.0
"""A file that has not changed for this many seconds counts as completely copied."""
RETRIES = {"dagster/max_retries": "2"}
"""Tag that makes Dagster retry a run if its process dies."""

build_positions = dg.define_asset_job(
    "build_positions",
    [dump, positions],
    description="Turn one dump into positions. Without options, existing positions keep their "
    "settings.",
)


train = dg.define_asset_job(
    "train",
    [training_set, checkpoint, accuracy_report, leaderboard],
    description="Train a network for 5 minutes on the positions, then measure it. To change the "
    "time, datasets and other options, choose *Open launchpad* in the menu beside "
    "*Materialize all*.",
)
# A job with partitioned assets would train one network per dump in a backfill.
finetune = dg.define_asset_job(
    "finetune",
    [tuned_checkpoint, strength_report],
    description="Improve a trained network by self-play, then measure its strength.",
)
verify = dg.define_asset_job(
    "verify",
    dg.AssetSelection.checks_for_assets(positions),
    description="Check all materialized positions against their manifests and dumps.",
)
nightly_verify = dg.ScheduleDefinition(
    job=verify,
    cron_schedule="0 2 * * *",
    description="Check all positions daily at 2:00 UTC. Runs do not use positions that failed a "
    "blocking check.",
)


def register(instance: dg.DagsterInstance, datasets: Datasets) -> list[str]:
    """Add a partition for each new dump, and return the new keys."""
    new = sorted(set(datasets.dumps()) - set(instance.get_dynamic_partitions(DUMPS)))
    if new:
        instance.add_dynamic_partitions(DUMPS, new)
    return new


@dg.sensor(
    minimum_interval_seconds=20,
    default_status=dg.DefaultSensorStatus.RUNNING,
    description="Add a partition of `dump` for each new file in datasets/dumps/. Launches no runs.",
)
def dumps_folder(context: dg.SensorEvaluationContext, datasets: Datasets) -> dg.SkipReason:
    """Add a partition for each new dump."""
    return dg.SkipReason(f"new dumps: {', '.join(register(context.instance, datasets)) or 'none'}")


@dg.sensor(
    job=build_positions,
    minimum_interval_seconds=30,
    description="Build positions for each file in datasets/dumps/ that has none or has changed "
    "since they were built.",
)
def new_dumps(
    context: dg.SensorEvaluationContext, datasets: Datasets
) -> dg.SensorResult | dg.SkipReason:
    """Request positions for each dump whose positions are missing or outdated.

    Each version of a file is requested once, so a failed run is not repeated until the file
    changes.
    """
    register(context.instance, datasets)
    requests = []
    for key, (file, *_) in datasets.dumps().items():
        version = version_of(file)
        settled = file.stat().st_mtime <= time.time() - SETTLE_SECONDS
        if key != SAMPLE_KEY and settled and is_wanted(context.instance, datasets, key, version):
            run_key = f"{key}, {version}"
            requests.append(dg.RunRequest(run_key=run_key, partition_key=key, tags=RETRIES))
    if not requests:
        return dg.SkipReason(f"{datasets.path / 'dumps'} has no new dumps that are complete")
    return dg.SensorResult(run_requests=requests)


def is_wanted(instance: dg.DagsterInstance, datasets: Datasets, key: str, version: str) -> bool:
    """Return whether a dump lacks up-to-date positions and no run is building them."""
    running = dg.RunsFilter(tags={"dagster/partition": key}, statuses=UNFINISHED)
    if instance.get_run_records(running, limit=1):
        return False
    if not (datasets.positions(key) / MANIFEST).is_file():
        return True
    query = dg.AssetRecordsFilter(asset_key=positions.key, asset_partitions=[key])
    for record in instance.fetch_materializations(query, limit=1).records:
        assert record.asset_materialization is not None
        recorded = record.asset_materialization.metadata.get(DUMP_VERSION)
        return recorded is None or recorded.value != version
    return True
