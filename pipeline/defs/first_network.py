"""The job `first_network`: from games to a measured network, in one run.

Its ops do the work of the assets, one after another, and record the assets' materializations. The
job therefore has one short form, and needs no partition until the games have been found.

`python -m pipeline.defs.first_network` (`make run`) runs the job here and prints its progress. The
run is stored in the instance at DAGSTER_HOME (default: `dagster_home/`), so the UI shows it.
"""

import argparse
import inspect
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
from pipeline.defs import assets, checks, child
from pipeline.defs.launchpad.forms import Form, make_form, read_form
from pipeline.defs.launchpad.options import (
    CheckpointOptions,
    PositionsOptions,
    ReportOptions,
    TrainingSetOptions,
)
from pipeline.defs.resources import SAMPLE_KEY, Datasets, load, parse_key
from pipeline.defs.steps import DUMPS, StoppedError, log_progress, report_user_errors
from pipeline.dumps.fetch import MONTH_PREFIX, fetch, parse_month
from pipeline.errors import ConfigError
from pipeline.storage.http import is_web, parse_file_name

Events = Iterator[dg.AssetCheckEvaluation | dg.Output[None]]
PRINT_SECONDS = 10.0
"""Minimum number of seconds between printed observations."""


@settings(ConfigError)
class FirstNetworkOptions:
    """Options of `first_network`."""

    form: ClassVar = ("games", "minutes", "start_from_embedded", "report")

    games: str = SAMPLE_KEY
    """Games to learn from: a PGN file (a path on this machine or an https:// address, also .zst,
    .gz, .bz2, .zip), a month of Lichess such as 2013-01, or the name of a dump in datasets/dumps.
    `sample` is the sample of 2,000 games that comes with the program."""
    minutes: Annotated[float, Field(ge=1e-3, le=1e6)] = 5.0
    """Minutes of training. Reading the games and measuring the network take additional time."""
    start_from_embedded: bool = True
    """Start from the embedded network. If false, training starts from random weights, and needs
    100,000 games and an hour to become as good."""
    report: bool = True
    """Measure the network on games that it was not trained on."""


def find_partition(games: str) -> str:
    """Return the partition key of the games. Raises UserError for a file that is no dump."""
    if parse_month(f"{MONTH_PREFIX}{games}"):
        return f"{MONTH_PREFIX}{games}"
    if not is_web(games) and "/" not in games and parse_key(Path(games)) is None:
        return games
    name = parse_file_name(games) if is_web(games) else games
    key = parse_key(Path(name))
    if key is None:
        raise UserError(
            f"{name} must be a PGN file, with a name that ends in .pgn, .pgn.zst, .pgn.gz, ..."
        )
    return key


def find_games(context: dg.OpExecutionContext, games: str, datasets: Datasets) -> str:
    """Download the games or link them into datasets/dumps, and return their partition key."""
    key, folder = find_partition(games), datasets.path / "dumps"
    file = Path(games).expanduser()
    known = [path.resolve() for path in datasets.dumps().get(key, [])]
    if parse_month(key) == games or is_web(games):
        name = parse_file_name(games) if is_web(games) else f"{key}.pgn.zst"
        if others := [path for path in known if path.name != name]:
            raise UserError(
                f"{others[0]} exists and is used as {key}: remove it to download {name}"
            )
        work = partial(fetch, [games], folder, datasets.fetching)
        child.run_child(work, progress=log_progress(context, assets.dump.key, key))
    elif parse_key(file) and file.is_file() and file.resolve() not in known:
        if known:
            raise UserError(f"{known[0]} has the same name as {file}: rename one of them")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / file.name).symlink_to(file.resolve())
    elif "/" in games and not known:
        raise UserError(f"there is no file {file}: give its full path")
    datasets.source(key)
    context.instance.add_dynamic_partitions(DUMPS, [key])
    return key


class AssetStep:
    """The context of an op, as the function of an asset expects it."""

    def __init__(
        self, context: dg.OpExecutionContext, asset: dg.AssetsDefinition, key: str
    ) -> None:
        self.context, self.assets_def = context, asset
        self.asset_key, self.partition_key = asset.key, key

    def __getattr__(self, name: str) -> Any:
        return getattr(self.context, name)


def materialize(
    context: dg.OpExecutionContext,
    asset: dg.AssetsDefinition,
    key: str,
    datasets: Datasets,
    config: object = None,
) -> Events:
    """Call the function of an asset, record its materialization, and yield its checks."""
    function: Any = asset.op.compute_fn
    work = function.decorated_fn
    offered = {"context": AssetStep(context, asset, key), "config": config, "datasets": datasets}
    names = inspect.signature(work).parameters
    result: dg.MaterializeResult[None] = work(**{name: offered[name] for name in names})
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


Config = Form[FirstNetworkOptions]


@dg.op(pool="network", out=dg.Out(dg.Nothing))
def get_games(context: dg.OpExecutionContext, config: Config, datasets: Datasets) -> Events:
    """Find or download the games."""
    with report_user_errors():
        key = find_games(context, read_form(config).games, datasets)
    yield from materialize(context, assets.dump, key, datasets)
    yield dg.Output(None)


@dg.op(pool="processor", ins={"before": dg.In(dg.Nothing)}, out=dg.Out(dg.Nothing))
def make_positions(context: dg.OpExecutionContext, config: Config, datasets: Datasets) -> Events:
    """Turn the games into positions, and verify them."""
    key = find_partition(read_form(config).games)
    options = make_form(PositionsOptions)()
    yield from materialize(context, assets.positions, key, datasets, options)
    for check in checks.verify(datasets, key):
        yield checks.to_evaluation(check, assets.positions.key, key)
    joined = make_form(TrainingSetOptions).model_validate({"positions": [key]})
    yield from materialize(context, assets.training_set, key, datasets, joined)
    yield dg.Output(None)


@dg.op(pool="accelerator", ins={"before": dg.In(dg.Nothing)}, out=dg.Out(dg.Nothing))
def train_network(context: dg.OpExecutionContext, config: Config, datasets: Datasets) -> Events:
    """Train the network, and check that it loads."""
    form = read_form(config)
    start = "embedded" if form.start_from_embedded else "scratch"
    fields = {"minutes": form.minutes, "start": start}
    options = make_form(CheckpointOptions).model_validate(fields)
    yield from materialize(context, assets.checkpoint, "", datasets, options)
    check = checks.probe_checkpoint(context.instance, context.run)
    yield checks.to_evaluation(check, assets.checkpoint.key)
    yield dg.Output(None)


@dg.op(pool="accelerator", ins={"before": dg.In(dg.Nothing)}, out=dg.Out(dg.Nothing))
def measure_network(context: dg.OpExecutionContext, config: Config, datasets: Datasets) -> Events:
    """Report how often it finds the move played."""
    if read_form(config).report:
        options = make_form(ReportOptions)()
        yield from materialize(context, assets.accuracy_report, "", datasets, options)
    yield dg.Output(None)


@dg.config_mapping
def configure(config: Config) -> dg.RunConfig:
    """Pass the form's values to every op."""
    steps = (get_games, make_positions, train_network, measure_network)
    quiet = {"console": {"config": {"log_level": "CRITICAL"}}}
    ops = {step.name: {"config": config.model_dump()} for step in steps}
    return dg.RunConfig(ops=ops, loggers=quiet)


@dg.job(config=configure)
def first_network() -> None:
    """Train a network on games, and measure it.

    Reads or downloads the games, turns them into positions, trains, and reports how often the
    network finds the move played in games that it was not trained on. Re-executing a stopped run
    continues it.
    """
    measure_network(before=train_network(before=make_positions(before=get_games())))


def main() -> int:
    """Run the job and print its progress; return 0 unless a step or a blocking check failed."""
    parser = argparse.ArgumentParser(
        description="Train a network on one dump from random weights, and measure it."
    )
    parser.add_argument(
        "--dump",
        default=SAMPLE_KEY,
        help="file in datasets/dumps/ without its extension, a path, an address, or `sample`",
    )
    parser.add_argument("--minutes", type=float, default=1.5, help="minutes of training")
    options = parser.parse_args()
    home = Path(pipeline.__file__).resolve().parents[1] / "dagster_home"
    os.environ.setdefault("DAGSTER_HOME", str(home))
    with dg.DagsterInstance.get() as instance:
        run_id = str(uuid.uuid4())
        instance.add_event_listener(run_id, Printer())
        form = {
            "games": options.dump, "minutes": options.minutes, "start_from_embedded": False,
        }  # fmt: skip
        try:
            result = (
                load()
                .resolve_job_def("first_network")
                .execute_in_process(form, instance=instance, run_id=run_id)
            )
        except (dg.DagsterExecutionInterruptedError, StoppedError):
            _print("interrupted: run the same command again to resume")
            return 130
        except (dg.Failure, UserError, dg.DagsterError) as failure:
            _print(f"failed: {getattr(failure, 'description', failure)}")
            return 1
    (report,) = result.asset_materializations_for_node("measure_network")
    found = {name: value.value for name, value in report.metadata.items()}
    _print(f"\n{found['headline']} {found['compared']}")
    if options.dump == SAMPLE_KEY:
        _print("The games are the embedded sample: 2,000 games that the embedded network played.")
    _print(f"report: {found['path']}/report.html")
    _print("next: `make play` to play against the network, `make ui` to see this run in Dagster")
    return 0


class Printer:
    """Print the steps and checks of a run, and an observation every PRINT_SECONDS."""

    def __init__(self) -> None:
        self.printed = 0.0

    def __call__(self, entry: dg.EventLogEntry) -> None:
        """Print one event of the run's log."""
        event = entry.dagster_event
        if event is None:
            return
        match event.event_type:
            case dg.DagsterEventType.STEP_START:
                _print(f"{event.step_key} ...")
            case dg.DagsterEventType.ASSET_OBSERVATION if (
                entry.timestamp - self.printed >= PRINT_SECONDS
            ):
                self.printed = entry.timestamp
                seen = event.asset_observation_data.asset_observation.metadata
                _print("    " + "  ".join(f"{name} {it.value}" for name, it in seen.items()))
            case dg.DagsterEventType.ASSET_CHECK_EVALUATION:
                check = event.asset_check_evaluation_data
                failed = f"{check.severity.value}: {check.description}"
                _print(f"    check {check.check_name}: {'passed' if check.passed else failed}")


def _print(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
