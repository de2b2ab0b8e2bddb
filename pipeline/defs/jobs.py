"""Jobs that a user starts, schedules, and the cleaning up of old runs."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import dagster as dg
from dagster import DagsterRunStatus, RunsFilter

from pipeline.defs.assets import (
    accuracy_report,
    checkpoint,
    dump,
    dumps,
    leaderboard,
    lichess_month,
    positions,
    report_user_errors,
    training_set,
)
from pipeline.defs.launchpad.options import saved_settings
from pipeline.defs.resources import Datasets
from pipeline.defs.tuned import strength_report, tuned_checkpoint
from pipeline.dumps.fetch import STEM, list_published_months

PARTITION = "dagster/partition"
"""Tag of a run: the partition that it materializes."""
FINISHED = [DagsterRunStatus.SUCCESS, DagsterRunStatus.FAILURE, DagsterRunStatus.CANCELED]
UNFINISHED = [status for status in DagsterRunStatus if status not in FINISHED]

build_positions = dg.define_asset_job(
    "build_positions",
    [dump, positions],
    config=dg.PartitionedConfig(dumps, run_config_for_partition_key_fn=lambda key: settings(Datasets().positions(key))),
    description="Turn one dump into positions. The launchpad starts with the settings of the positions that it already has.",
)
train = dg.define_asset_job(
    "train",
    [training_set, checkpoint, accuracy_report, leaderboard],
    description="Join the positions, train a network on them, and measure its accuracy.",
)
# No job mixes these with partitioned assets: a backfill over dumps would then train one network per dump.
finetune = dg.define_asset_job(
    "finetune",
    [tuned_checkpoint, strength_report],
    description="Improve a trained network by self-play and measure its strength.",
)


def settings(folder: Path) -> dict[str, Any]:
    """Return the run configuration that builds positions as those in a folder were built; {} if there are none."""
    before = saved_settings(folder)
    return {"ops": {positions.op.name: {"config": {"ingest": before}}}} if before else {}


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


fetch_months = dg.define_asset_job(
    "fetch_months",
    [lichess_month],
    description="Download a month of Lichess, or a range of months as a backfill. Each month becomes a dump.",
)


@dg.schedule(
    job=fetch_months,
    cron_schedule="0 6 * * *",
    description="Daily at 6:00 UTC: download the latest month that Lichess has published, about 30 GB, unless it is here.",
)
def new_months(context: dg.ScheduleEvaluationContext, datasets: Datasets) -> dg.RunRequest | dg.SkipReason:
    """Request the latest published month, unless it is here or being downloaded; earlier months need a backfill."""
    with report_user_errors():
        published = list_published_months(datasets.fetching)
    if not published:
        return dg.SkipReason(f"{datasets.fetching.base} has published no month")
    month = published[-1]
    if f"{STEM}{month}" in datasets.dumps():
        return dg.SkipReason(f"{month}, the latest published month, is here")
    running = RunsFilter(tags={PARTITION: month}, statuses=UNFINISHED)
    if context.instance.get_run_records(running, limit=1):
        return dg.SkipReason(f"{month} is being downloaded")
    return dg.RunRequest(partition_key=month)


verify = dg.define_asset_job(
    "verify",
    dg.AssetSelection.checks_for_assets(positions),
    description="Check positions against their manifests and dumps, those first whose last check is oldest.",
)
nightly_verify = dg.ScheduleDefinition(
    job=verify,
    cron_schedule="0 2 * * *",
    description="Daily at 2:00 UTC: check positions again. Runs do not use positions that failed a blocking check.",
)


@dg.op(
    config_schema={"days": dg.Field(int, default_value=30, description="Minimum age, in days, of the deleted runs.")}
)
def delete_old_runs(context: dg.OpExecutionContext) -> int:
    """Delete old finished runs that materialized nothing; the plots need the events of the others."""
    before = datetime.now(UTC) - timedelta(days=context.op_config["days"])
    deleted = 0
    for record in context.instance.get_run_records(RunsFilter(statuses=FINISHED, created_before=before)):
        run = record.dagster_run.run_id
        if not context.instance.all_logs(run, of_type=dg.DagsterEventType.ASSET_MATERIALIZATION):
            context.instance.delete_run(run)
            deleted += 1
    context.log.info(f"deleted {deleted} runs older than {context.op_config['days']} days")
    return deleted


@dg.job
def clean_up_runs() -> None:
    """Delete old runs that materialized nothing; Dagster itself deletes only ticks of sensors and schedules."""
    delete_old_runs()


weekly_clean_up = dg.ScheduleDefinition(
    job=clean_up_runs,
    cron_schedule="0 4 * * 1",
    description="Mondays at 4:00 UTC: delete old runs that materialized nothing.",
)
