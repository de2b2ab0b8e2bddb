"""Jobs: what a person starts by one click, and the housekeeping of the instance."""

import time

import dagster as dg
from dagster import DagsterRunStatus, RunsFilter

from pipeline.defs.assets import accuracy_report, checkpoint, dump, dumps, plainly, positions, training_set
from pipeline.defs.resources import Datasets
from pipeline.defs.tuned import strength_report, tuned_checkpoint
from pipeline.dumps.fetch import STEM, month_of, published_months

build_positions = dg.define_asset_job("build_positions", [dump, positions], description="Turn one dump into positions.")
train = dg.define_asset_job(
    "train",
    [training_set, checkpoint, accuracy_report],
    description="Join the positions, train a network on them and measure it.",
)
# No job holds assets of both kinds: its backfill over dumps would train a network a dump. `Materialize all` trains once.
finetune = dg.define_asset_job(
    "finetune",
    [tuned_checkpoint, strength_report],
    description="Make a trained network stronger by self-play, and measure its strength.",
)


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


def register_published(instance: dg.DagsterInstance, datasets: Datasets) -> list[str]:
    """Add a partition for each month that Lichess has published since the latest that is registered, and return their keys.

    With none registered, that is the latest published one alone: all of Lichess is nobody's first wish.
    """
    assert dumps.name is not None
    known = [month for key in instance.get_dynamic_partitions(dumps.name) if (month := month_of(key))]
    months = published_months(datasets.fetching)
    since = [month for month in months if month > max(known)] if known else months[-1:]
    new = [f"{STEM}{month}" for month in since]
    if new:
        instance.add_dynamic_partitions(dumps.name, new)
    return new


@dg.op
def add_months(context: dg.OpExecutionContext, datasets: Datasets) -> None:
    """Add a partition for each newly published month."""
    with plainly():
        context.log.info(f"new months: {', '.join(register_published(context.instance, datasets)) or 'none'}")


@dg.job
def register_months() -> None:
    """Register the months that Lichess has published since; materialising one fetches it. Nothing is fetched here."""
    add_months()


new_months = dg.ScheduleDefinition(job=register_months, cron_schedule="0 6 * * *")


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


weekly_clean_up = dg.ScheduleDefinition(job=clean_up_runs, cron_schedule="0 4 * * 1")
