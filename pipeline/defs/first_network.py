"""The job `first_network`: from games to a measured network, in one run.

Its ops do the work of the assets one after another, and record the assets' materializations.
Therefore the job has one short form, and its partition need not exist before the run.

`python -m pipeline.defs.first_network` (`make run`) executes the job in this process and prints its
progress. The run is stored in the instance at DAGSTER_HOME (default: `dagster_home/`), so the UI
shows it.
"""

import argparse
import os
import sys
import uuid
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Annotated, Any, ClassVar

import dagster as dg
from pydantic import Field

import pipeline
from engine.errors import UserError
from model.settings import settings
from pipeline.cli.commands.warmup import compile_kernels
from pipeline.cli.progress import call_with_supported
from pipeline.defs import assets, checks, child
from pipeline.defs.launchpad.forms import Form, make_form, read_form
from pipeline.defs.launchpad.options import (
    CheckpointOptions,
    PositionsOptions,
    ReportOptions,
    TrainingSetOptions,
)
from pipeline.defs.resources import SAMPLE_KEY, DataFolder, load_definitions, parse_dump_key
from pipeline.defs.steps import DUMP_PARTITIONS, StoppedError, log_progress, report_user_errors
from pipeline.dumps.fetch import MONTH_PREFIX, fetch, parse_month
from pipeline.errors import ConfigError
from pipeline.storage.http import is_http_url, parse_file_name

OpEvents = Iterator[dg.AssetCheckEvaluation | dg.Output[None]]
PRINT_SECONDS = 10.0
"""Minimum seconds between two printed lines of progress."""


@settings(ConfigError)
class FirstNetworkOptions:
    """Options of `first_network`."""

    form: ClassVar = ("games", "minutes", "start_from_embedded", "report")

    games: str = SAMPLE_KEY
    """Games to learn from: a PGN file (a path on this machine or an https:// URL, also .zst, .gz,
    .bz2, .zip), a month of Lichess such as 2013-01, or the name of a dump in datasets/dumps.
    `sample` stands for 2,000 games that come with the program."""
    minutes: Annotated[float, Field(ge=1e-3, le=1e6)] = 5.0
    """Minutes of training. Reading the games and measuring the network take additional time."""
    start_from_embedded: bool = True
    """Start from the network that comes with the program. If false, training starts from random
    weights, and needs 100,000 games and an hour to become as good."""
    report: bool = True
    """Measure the network on games that it was not trained on."""


def find_partition(games: str) -> str:
    """Return the partition key of the games. Raises UserError for a file that is not a dump."""
    if parse_month(f"{MONTH_PREFIX}{games}"):
        return f"{MONTH_PREFIX}{games}"
    if not is_http_url(games) and "/" not in games and parse_dump_key(Path(games)) is None:
        return games
    name = parse_file_name(games) if is_http_url(games) else games
    key = parse_dump_key(Path(name))
    if key is None:
        raise UserError(
            f"{name} must be a PGN file whose name ends in .pgn, .pgn.zst, .pgn.bz2, .pgn.gz or "
            ".pgn.zip"
        )
    return key


def fetch_games(context: dg.OpExecutionContext, games: str, datasets: DataFolder) -> str:
    """Download or link the games if necessary; add their partition, and return its key."""
    key, folder = find_partition(games), datasets.path / "dumps"
    file = Path(games).expanduser()
    existing = [path.resolve() for path in datasets.list_dumps().get(key, [])]
    if parse_month(key) == games or is_http_url(games):
        name = parse_file_name(games) if is_http_url(games) else f"{key}.pgn.zst"
        if others := [path for path in existing if path.name != name]:
            raise UserError(
                f"{others[0]} already belongs to the partition {key}: remove it to download {name}"
            )
        work = partial(fetch, [games], folder, datasets.fetch_config)
        child.run_child(work, progress=log_progress(context, assets.dump.key, key))
    elif parse_dump_key(file) and file.is_file() and file.resolve() not in existing:
        if existing:
            raise UserError(f"{existing[0]} has the same name as {file}: rename one of them")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / file.name).symlink_to(file.resolve())
    elif "/" in games and not existing:
        raise UserError(f"there is no file {file}: give its full path")
    datasets.find_dump(key)  # raises UserError
    context.instance.add_dynamic_partitions(DUMP_PARTITIONS, [key])
    return key


class AssetContext:
    """An op's context with the key and partition of an asset, whose function reads them."""

    def __init__(
        self, context: dg.OpExecutionContext, asset: dg.AssetsDefinition, key: str
    ) -> None:
        self.context, self.assets_def = context, asset
        self.asset_key, self.partition_key = asset.key, key

    def __getattr__(self, name: str) -> Any:
        return getattr(self.context, name)


def materialize_asset(
    context: dg.OpExecutionContext,
    asset: dg.AssetsDefinition,
    key: str,
    datasets: DataFolder,
    config: object = None,
) -> OpEvents:
    """Call the function of an asset, record its materialization, and yield its checks' results."""
    compute_fn: Any = asset.op.compute_fn
    result: dg.MaterializeResult[None] = call_with_supported(
        compute_fn.decorated_fn,
        context=AssetContext(context, asset, key),
        config=config,
        datasets=datasets,
    )
    partition = key if asset.partitions_def else None
    version = result.data_version.value if result.data_version else ""
    context.log_event(
        dg.AssetMaterialization(
            asset.key,
            partition=partition,
            metadata=result.metadata,
            tags={"dagster/data_version": version},
        )
    )
    for check in result.check_results or ():
        yield checks.to_evaluation(check, asset.key, partition)


FirstNetworkForm = Form[FirstNetworkOptions]


@dg.op(pool="network", out=dg.Out(dg.Nothing))
def get_games(
    context: dg.OpExecutionContext, config: FirstNetworkForm, datasets: DataFolder
) -> OpEvents:
    """Find the games on this machine, or download them, and record them as the asset `dump`."""
    with report_user_errors():
        key = fetch_games(context, read_form(config).games, datasets)
    yield from materialize_asset(context, assets.dump, key, datasets)
    yield dg.Output(None)


@dg.op(pool="processor", ins={"before": dg.In(dg.Nothing)}, out=dg.Out(dg.Nothing))
def make_positions(
    context: dg.OpExecutionContext, config: FirstNetworkForm, datasets: DataFolder
) -> OpEvents:
    """Turn the games into positions, verify them, and make a training set."""
    key = find_partition(read_form(config).games)
    options = make_form(PositionsOptions)()
    yield from materialize_asset(context, assets.positions, key, datasets, options)
    for check in checks.verify_partition(datasets, key):
        yield checks.to_evaluation(check, assets.positions.key, key)
    set_options = make_form(TrainingSetOptions).model_validate({"positions": [key]})
    yield from materialize_asset(context, assets.training_set, key, datasets, set_options)
    yield dg.Output(None)


@dg.op(pool="accelerator", ins={"before": dg.In(dg.Nothing)}, out=dg.Out(dg.Nothing))
def train_network(
    context: dg.OpExecutionContext, config: FirstNetworkForm, datasets: DataFolder
) -> OpEvents:
    """Train the network, and check that it can be loaded."""
    form = read_form(config)
    start = "embedded" if form.start_from_embedded else "scratch"
    fields = {"minutes": form.minutes, "start": start}
    options = make_form(CheckpointOptions).model_validate(fields)
    yield from materialize_asset(context, assets.checkpoint, "", datasets, options)
    check = checks.probe_checkpoint(context.instance, context.run)
    yield checks.to_evaluation(check, assets.checkpoint.key)
    yield dg.Output(None)


@dg.op(pool="accelerator", ins={"before": dg.In(dg.Nothing)}, out=dg.Out(dg.Nothing))
def measure_network(
    context: dg.OpExecutionContext, config: FirstNetworkForm, datasets: DataFolder
) -> OpEvents:
    """If `report` is set, measure how often the network's first choice is the move played."""
    if read_form(config).report:
        options = make_form(ReportOptions)()
        yield from materialize_asset(context, assets.accuracy_report, "", datasets, options)
    yield dg.Output(None)


@dg.config_mapping
def map_config(config: FirstNetworkForm) -> dg.RunConfig:
    """Give the form's values to every op, and keep Dagster's own log lines off the console."""
    steps = (get_games, make_positions, train_network, measure_network)
    quiet = {"console": {"config": {"log_level": "CRITICAL"}}}
    ops = {step.name: {"config": config.model_dump()} for step in steps}
    return dg.RunConfig(ops=ops, loggers=quiet)


@dg.job(config=map_config)
def first_network() -> None:
    """Train a network on games, and measure it.

    Read or download the games, turn them into positions, train, and report how often the network
    finds the move played in games that it was not trained on. Re-execute a stopped run to continue
    it.
    """
    measure_network(before=train_network(before=make_positions(before=get_games())))


def main() -> int:
    """Run the job and print its progress; return the exit status."""
    parser = argparse.ArgumentParser(
        description="Train a network from random weights on the games of one dump, and measure it."
    )
    parser.add_argument(
        "--dump",
        default=SAMPLE_KEY,
        help="games: `sample`, the name of a file in datasets/dumps/ without .pgn, a path or a URL",
    )
    parser.add_argument("--minutes", type=float, default=1.5, help="minutes of training")
    options = parser.parse_args()
    home = Path(pipeline.__file__).resolve().parents[1] / "dagster_home"
    os.environ.setdefault("DAGSTER_HOME", str(home))
    with dg.DagsterInstance.get() as instance:
        run_id = str(uuid.uuid4())
        instance.add_event_listener(run_id, EventPrinter())
        form = {"games": options.dump, "minutes": options.minutes, "start_from_embedded": False}
        try:
            _print("compile_kernels ...")
            compile_kernels(players=False)
            job = load_definitions().resolve_job_def("first_network")
            result = job.execute_in_process(form, instance=instance, run_id=run_id)
        except (dg.DagsterExecutionInterruptedError, StoppedError, KeyboardInterrupt):
            _print("interrupted: run the same command again to resume")
            return 130
        except (dg.Failure, UserError, dg.DagsterError) as failure:
            _print(f"failed: {getattr(failure, 'description', failure)}")
            return 1
    (report,) = result.asset_materializations_for_node("measure_network")
    figures = {name: value.value for name, value in report.metadata.items()}
    _print(f"\n{figures['headline']} {figures['compared']}")
    if options.dump == SAMPLE_KEY:
        _print("The sample consists of 2,000 games that the embedded network played itself.")
    _print(f"report: {figures['path']}/report.html")
    _print("next: `make play` to play against the network, `make ui` to see this run in Dagster")
    return 0


class EventPrinter:
    """Prints the steps and checks of a run, and its progress every PRINT_SECONDS."""

    def __init__(self) -> None:
        self.last_printed = 0.0

    def __call__(self, entry: dg.EventLogEntry) -> None:
        """Print one event of the run's log."""
        event = entry.dagster_event
        if event is None:
            return
        match event.event_type:
            case dg.DagsterEventType.STEP_START:
                _print(f"{event.step_key} ...")
            case dg.DagsterEventType.ASSET_OBSERVATION if (
                entry.timestamp - self.last_printed >= PRINT_SECONDS
            ):
                self.last_printed = entry.timestamp
                values = event.asset_observation_data.asset_observation.metadata
                _print("    " + "  ".join(f"{name} {it.value}" for name, it in values.items()))
            case dg.DagsterEventType.ASSET_CHECK_EVALUATION:
                check = event.asset_check_evaluation_data
                failure = f"{check.severity.value}: {check.description}"
                _print(f"    check {check.check_name}: {'passed' if check.passed else failure}")


def _print(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
