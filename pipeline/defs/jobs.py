"""Jobs that a user starts, and the schedule of checks."""

import dagster as dg

from pipeline.defs.assets import (
    accuracy_report,
    checkpoint,
    dump,
    dumps,
    leaderboard,
    positions,
    training_set,
)
from pipeline.defs.resources import Datasets
from pipeline.defs.tuned import strength_report, tuned_checkpoint

build_positions = dg.define_asset_job(
    "build_positions",
    [dump, positions],
    description="Turn one dump into positions. Without options, with the settings of the positions that it already has.",
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


verify = dg.define_asset_job(
    "verify",
    dg.AssetSelection.checks_for_assets(positions),
    description="Check all materialized positions against their manifests and dumps.",
)
nightly_verify = dg.ScheduleDefinition(
    job=verify,
    cron_schedule="0 2 * * *",
    description="Daily at 2:00 UTC: check positions again. Runs do not use positions that failed a blocking check.",
)
