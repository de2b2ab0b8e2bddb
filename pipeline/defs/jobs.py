"""Jobs that a user starts, the schedule of checks, and the sensors that watch `datasets/dumps/`."""

import time

import dagster as dg

from pipeline.dataset.files.shards import MANIFEST
from pipeline.defs.assets import (
    DUMP_VERSION,
    accuracy_report,
    checkpoint,
    dump,
    dumps,
    leaderboard,
    positions,
    training_set,
)
from pipeline.defs.launchpad.forms import make_form
from pipeline.defs.launchpad.options import TrainOptions
from pipeline.defs.resources import SAMPLE, Datasets, version_of
from pipeline.defs.tuned import strength_report, tuned_checkpoint

FINISHED = (dg.DagsterRunStatus.SUCCESS, dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELED)
UNFINISHED = [status for status in dg.DagsterRunStatus if status not in FINISHED]
SETTLED = 30.0
"""Seconds for which a file must not have changed; a younger one may still be being copied."""
RETRIES = {"dagster/max_retries": "2"}
"""Tag of a requested run, which Dagster retries if its process dies."""

build_positions = dg.define_asset_job(
    "build_positions",
    [dump, positions],
    description="Turn one dump into positions. Without options, with the settings of the positions "
    "that it already has.",
)


@dg.config_mapping
def configure_training(config: make_form(TrainOptions)) -> dg.RunConfig:  # type: ignore[valid-type]
    """Turn the short form of `train` into the configuration of its assets."""
    values = config.model_dump()
    joined = {"positions": values.pop("positions")}
    return dg.RunConfig(ops={"training_set": {"config": joined}, "checkpoint": {"config": values}})


train = dg.define_asset_job(
    "train",
    [training_set, checkpoint, accuracy_report, leaderboard],
    config=configure_training,
    description="Train a network on the positions for 5 minutes, and measure it. To set minutes, "
    "datasets and more, choose *Open launchpad* in the menu beside *Materialize all*.",
)
# A job with partitioned assets would train one network per dump in a backfill.
finetune = dg.define_asset_job(
    "finetune",
    [tuned_checkpoint, strength_report],
    description="Improve a trained network by self-play and measure its strength.",
)


def register(instance: dg.DagsterInstance, datasets: Datasets) -> list[str]:
    """Add a partition for each dump that has none, and return the new keys."""
    assert dumps.name is not None
    new = sorted(set(datasets.dumps()) - set(instance.get_dynamic_partitions(dumps.name)))
    if new:
        instance.add_dynamic_partitions(dumps.name, new)
    return new


@dg.op
def add_partitions(context: dg.OpExecutionContext, datasets: Datasets) -> None:
    """Add a partition for each dump that has none."""
    context.log.info(f"new dumps: {', '.join(register(context.instance, datasets)) or 'none'}")


@dg.job
def register_dumps() -> None:
    """Register the files in `datasets/dumps/` and the embedded sample as partitions, once."""
    add_partitions()


@dg.sensor(
    minimum_interval_seconds=20,
    default_status=dg.DefaultSensorStatus.RUNNING,
    description="List each file that is put into datasets/dumps/ as a partition of `dump`. It "
    "launches nothing.",
)
def dumps_folder(context: dg.SensorEvaluationContext, datasets: Datasets) -> dg.SkipReason:
    """Add a partition for each dump that has none."""
    return dg.SkipReason(f"new dumps: {', '.join(register(context.instance, datasets)) or 'none'}")


verify = dg.define_asset_job(
    "verify",
    dg.AssetSelection.checks_for_assets(positions),
    description="Check all materialized positions against their manifests and dumps.",
)
nightly_verify = dg.ScheduleDefinition(
    job=verify,
    cron_schedule="0 2 * * *",
    description="Daily at 2:00 UTC: check positions again. Runs do not use positions that failed a "
    "blocking check.",
)


@dg.sensor(
    job=build_positions,
    minimum_interval_seconds=30,
    description="Build positions of each file in datasets/dumps/ that has none, or has changed "
    "since they were made.",
)
def new_dumps(
    context: dg.SensorEvaluationContext, datasets: Datasets
) -> dg.SensorResult | dg.SkipReason:
    """Request positions of each dump without current ones, once per version of the file.

    Files that arrived while nothing ran are found too. A run that failed is not requested again
    until the file changes.
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
            requests.append(
                dg.RunRequest(run_key=f"{key}, {version}", partition_key=key, tags=RETRIES)
            )
    if not requests:
        return dg.SkipReason(
            f"{datasets.path / 'dumps'} has no new dumps; {changing} of its files are changing"
        )
    known = set(context.instance.get_dynamic_partitions(dumps.name))
    new = [str(request.partition_key) for request in requests if request.partition_key not in known]
    return dg.SensorResult(
        run_requests=requests,
        dynamic_partitions_requests=[dumps.build_add_request(new)] if new else [],
    )


def is_wanted(instance: dg.DagsterInstance, datasets: Datasets, key: str, version: str) -> bool:
    """Return whether a dump has no positions of its version, and no run is making them."""
    if instance.get_run_records(
        dg.RunsFilter(tags={"dagster/partition": key}, statuses=UNFINISHED), limit=1
    ):
        return False
    query = dg.AssetRecordsFilter(asset_key=positions.key, asset_partitions=[key])
    found = [
        record.asset_materialization
        for record in instance.fetch_materializations(query, limit=1).records
    ]
    if not (datasets.positions(key) / MANIFEST).is_file() or not found or found[0] is None:
        return True
    recorded = found[0].metadata.get(DUMP_VERSION)
    return recorded is None or recorded.value != version
