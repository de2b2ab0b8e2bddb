"""Jobs: what a person starts by one click, and the housekeeping of the instance."""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import dagster as dg
from dagster import DagsterRunStatus, RunsFilter
from dagster._core.storage.dagster_run import NOT_FINISHED_STATUSES
from dagster._core.storage.tags import PARTITION_NAME_TAG

from pipeline.defs.assets import (
    accuracy_report,
    checkpoint,
    dump,
    dumps,
    leaderboard,
    lichess_month,
    plainly,
    positions,
    training_set,
)
from pipeline.defs.launchpad.options import remembered
from pipeline.defs.resources import Datasets
from pipeline.defs.tuned import strength_report, tuned_checkpoint
from pipeline.dumps.fetch import STEM, list_published_months

build_positions = dg.define_asset_job(
    "build_positions",
    [dump, positions],
    config=dg.PartitionedConfig(dumps, run_config_for_partition_key_fn=lambda key: settings(Datasets().positions(key))),
    description="Turn one dump into positions; a dump that has some already comes with the options that they were made with.",
)
LENGTHS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "train": ("as the form says", {}),
    "train_quick": ("for 90 seconds, to see that everything works", {"train": {"minutes": 1.5}}),
    "train_15_minutes": (
        "for 15 minutes: the network and optimizer that the README recommends",
        {"preset": "fianchetto-human", "train": {"minutes": 15.0, "optimizer": "muon"}},
    ),
    "train_overnight": (
        "for 8 hours: the network and optimizer that the README recommends",
        {"preset": "fianchetto-human", "train": {"minutes": 480.0, "optimizer": "muon"}},
    ),
}
"""Launchpad configurations of the checkpoint that come as jobs of their own: name -> (how long, options)."""
train, *saved = (
    dg.define_asset_job(
        name,
        [training_set, checkpoint, accuracy_report, leaderboard],
        config={"ops": {"checkpoint": {"config": dict(options)}}} if options else None,
        description=f"Join the positions, train a network on them and measure it; {length}.",
    )
    for name, (length, options) in LENGTHS.items()
)
train_quick, train_15_minutes, train_overnight = saved
# No job holds assets of both kinds: its backfill over dumps would train a network a dump. `Materialize all` trains once.
finetune = dg.define_asset_job(
    "finetune",
    [tuned_checkpoint, strength_report],
    description="Make a trained network stronger by self-play, and measure its strength.",
)


def settings(folder: Path) -> dict[str, Any]:
    """Return the run configuration that makes positions as those in a folder were made; {} where there are none."""
    before = remembered(folder)
    return {"ops": {positions.op.name: {"config": {"ingest": before}}}} if before else {}


def register(instance: dg.DagsterInstance, datasets: Datasets) -> list[str]:
    """Add a partition for each dump that has none yet, and return their keys."""
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
    description="Fetch a month that Lichess has published, or a range of months as a backfill; each becomes a dump.",
)


@dg.schedule(
    job=fetch_months,
    cron_schedule="0 6 * * *",
    description="Daily at 6:00 UTC: fetch the latest month that Lichess has published, where it is not here (about 30 GB).",
)
def new_months(context: dg.ScheduleEvaluationContext, datasets: Datasets) -> dg.RunRequest | dg.SkipReason:
    """Ask for the latest published month, unless it is here or on its way; months before it are for a backfill."""
    with plainly():
        published = list_published_months(datasets.fetching)
    if not published:
        return dg.SkipReason(f"{datasets.fetching.base} publishes no month")
    month = published[-1]
    if f"{STEM}{month}" in datasets.dumps():
        return dg.SkipReason(f"{month}, the latest month that is published, is here")
    under_way = RunsFilter(tags={PARTITION_NAME_TAG: month}, statuses=NOT_FINISHED_STATUSES)
    if context.instance.get_run_records(under_way, limit=1):
        return dg.SkipReason(f"{month} is being fetched")
    return dg.RunRequest(partition_key=month)


verify = dg.define_asset_job(
    "verify",
    dg.AssetSelection.checks_for_assets(positions),
    description="Check the positions that were not checked for longest against their manifests and dumps, making none again.",
)
nightly_verify = dg.ScheduleDefinition(
    job=verify,
    cron_schedule="0 2 * * *",
    description="Daily at 2:00 UTC: check positions again; later runs do not use those that fail a check that blocks.",
)


@dg.op(config_schema={"days": dg.Field(int, default_value=30, description="Age in days of the runs that may go.")})
def delete_old_runs(context: dg.OpExecutionContext) -> int:
    """Delete finished runs that are old and materialised nothing; the others hold what the plots show."""
    before = time.time() - 86400 * context.op_config["days"]
    finished = [DagsterRunStatus.SUCCESS, DagsterRunStatus.FAILURE, DagsterRunStatus.CANCELED]
    deleted = 0
    for record in context.instance.get_run_records(RunsFilter(statuses=finished)):
        run = record.dagster_run.run_id
        made = context.instance.all_logs(run, of_type=dg.DagsterEventType.ASSET_MATERIALIZATION)
        if record.create_timestamp.timestamp() < before and not made:
            context.instance.delete_run(run)
            deleted += 1
    context.log.info(f"deleted {deleted} runs older than {context.op_config['days']} days")
    return deleted


@dg.job
def clean_up_runs() -> None:
    """Delete old failed, cancelled and housekeeping runs; Dagster itself purges only ticks."""
    delete_old_runs()


weekly_clean_up = dg.ScheduleDefinition(
    job=clean_up_runs,
    cron_schedule="0 4 * * 1",
    description="Mondays at 4:00 UTC: delete old runs that materialised nothing.",
)
