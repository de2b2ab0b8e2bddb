"""The job that downloads a month of Lichess, and the sensor that then builds its positions."""

from collections.abc import Iterator
from functools import partial

import dagster as dg

from engine.errors import UserError
from pipeline.defs.assets import dump, dumps, report_user_errors
from pipeline.defs.child import run_child
from pipeline.defs.jobs import RETRIES, build_positions, is_wanted
from pipeline.defs.launchpad.forms import Form, read_form
from pipeline.defs.launchpad.options import FetchOptions
from pipeline.defs.progress import log_progress
from pipeline.defs.resources import Datasets, version_of
from pipeline.dumps.fetch import STEM, fetch, parse_months

FETCHED = "month"
"""Tag of a run of `fetch_month`: its month or range of months."""


@dg.op(pool="network")
def download(
    context: dg.OpExecutionContext,
    config: Form[FetchOptions],
    datasets: Datasets,
) -> None:
    """Download months of rated games from Lichess into `datasets/dumps/`, and verify them."""
    assert dumps.name is not None
    with report_user_errors():
        wanted = read_form(config).month
        context.instance.add_run_tags(context.run_id, {FETCHED: wanted})
        for month in parse_months(wanted):
            key = f"{STEM}{month}"
            file = f"{key}.pgn.zst"
            if others := [each for each in datasets.dumps().get(key, []) if each.name != file]:
                found = f"{others[0]} exists and is used as it is"
                raise UserError(f"{found}: remove it to download {file}")
            work = partial(fetch, [month], datasets.path / "dumps", datasets.fetching)
            progress = log_progress(context, dump.key, key)
            entry = run_child(work, progress=progress)["files"][file]
            context.instance.add_dynamic_partitions(dumps.name, [key])
            context.log.info(f"{file}: {entry['bytes']:,} bytes, SHA-256 {entry['sha256']}")


@dg.job
def fetch_month() -> None:
    """Download a month of Lichess. Its positions are built next, by a run of `build_positions`.

    An interrupted download resumes. 2013-01 has 17 MB; recent months have about 30 GB each.
    """
    download()


@dg.run_status_sensor(
    run_status=dg.DagsterRunStatus.SUCCESS,
    monitored_jobs=[fetch_month],
    request_job=build_positions,
    minimum_interval_seconds=10,
    default_status=dg.DefaultSensorStatus.RUNNING,
    description="Build positions of each month that `fetch_month` has downloaded.",
)
def fetched_months(
    context: dg.RunStatusSensorContext,
    datasets: Datasets,
) -> Iterator[dg.RunRequest]:
    """Request positions of the months of a run, except for those that are current."""
    for month in parse_months(context.dagster_run.tags[FETCHED]):
        key = f"{STEM}{month}"
        files = datasets.dumps().get(key, [])
        if files and is_wanted(context.instance, datasets, key, version_of(files[0])):
            run_key = f"{key} of {context.dagster_run.run_id}"
            yield dg.RunRequest(run_key=run_key, partition_key=key, tags=RETRIES)
