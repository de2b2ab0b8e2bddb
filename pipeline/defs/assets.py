"""The assets, nouns from dump to report: partition key -> options -> one library call in a child -> metadata."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import dagster as dg

from engine.errors import UserError
from engine.progress import Progress, Tick
from pipeline.dataset.files.shards import MANIFEST, file_hash
from pipeline.defs import tasks
from pipeline.defs.child import run_child
from pipeline.defs.launchpad.forms import Form, filled, options_of
from pipeline.defs.launchpad.look_ahead import forbidden, look_ahead, promised
from pipeline.defs.launchpad.options import (
    CheckpointOptions,
    PositionsOptions,
    ReportOptions,
    TrainingSetOptions,
    remembered,
)
from pipeline.defs.launchpad.remedies import in_ui
from pipeline.defs.pages import leaderboards, metadata
from pipeline.defs.resources import Compute, Datasets, version_of
from pipeline.defs.versions import CODE_VERSION, code_of
from pipeline.dumps.fetch import STEM
from pipeline.dumps.reader import require
from pipeline.ingest.chunk import IngestConfig
from pipeline.ingest.rows_code import rows_code

if TYPE_CHECKING:
    Result = dg.MaterializeResult[None]
else:
    Result = dg.MaterializeResult  # Dagster reads the annotation and knows it bare only

dumps = dg.DynamicPartitionsDefinition(name="dumps")
months = dg.MonthlyPartitionsDefinition(start_date="2013-01", fmt="%Y-%m")
"""The months that Lichess has published: a calendar, so that a range of them can be backfilled."""
TRAINED_ON = "trained_on"
"""Metadata of a checkpoint: the folder of its training set."""
DUMP_VERSION = "dump_version"
"""Metadata of positions: the dump that they are of, as `version_of` tells it."""
OWNERS = ["team:fianchetto"]
ROWS_VERSION = f"{CODE_VERSION}, rows {rows_code()}"
"""Of positions, which are of the code that made their rows: with other code they are out of date, and Dagster says so."""


@dg.asset(
    partitions_def=months,
    group_name="datasets",
    owners=OWNERS,
    tags={"stage": "data"},
    kinds={"file"},
    pool="network",
    code_version="1",
    freshness_policy=dg.FreshnessPolicy.time_window(fail_window=timedelta(days=62), warn_window=timedelta(days=40)),
)
def lichess_month(context: dg.AssetExecutionContext, datasets: Datasets) -> Result:
    """A month of rated games, fetched from Lichess into `datasets/dumps/` and verified; it is then a partition of `dump`.

    Months may be picked as a range and backfilled; one that was stopped continues. Months of today take about 30 GB each.
    """
    with plainly():
        key = f"{STEM}{context.partition_key}"
        wanted = f"{key}.pgn.zst"
        if other := [file for file in datasets.dumps().get(key, []) if file.name != wanted]:
            raise UserError(f"{other[0]} is there, and is used as it is: remove it to fetch {wanted} from Lichess")
        folder = datasets.path / "dumps"
        work = partial(tasks.fetch, context.partition_key, folder, datasets.fetching)
        fetched = run_child(work, progress=live(context))["files"][wanted]
        assert dumps.name is not None
        context.instance.add_dynamic_partitions(dumps.name, [key])
    return of_file(folder / wanted, fetched["sha256"], dump=key)


@dg.asset(
    partitions_def=dumps,
    group_name="datasets",
    owners=OWNERS,
    tags={"stage": "data"},
    kinds={"file"},
    code_version="1",
    automation_condition=dg.AutomationCondition.on_missing(),
)
def dump(context: dg.AssetExecutionContext, datasets: Datasets) -> Result:
    """A PGN dump in `datasets/dumps/`, one file a partition: a file of your own, or what `lichess_month` has fetched."""
    with checked(context, datasets):
        source = datasets.source(context.partition_key)
        require(str(source))
        digest = file_hash(source)
    return of_file(source, digest)


def of_file(path: Path, digest: str, **more: str) -> Result:
    """Return the materialization of a file whose sha256 is known."""
    facts: metadata.Metadata = {"path": dg.MetadataValue.path(path), "dagster/uri": path.as_uri()}
    facts |= {"bytes": path.stat().st_size, "sha256": digest, **more}
    return Result(metadata=facts, data_version=dg.DataVersion(digest))


@dg.asset(
    partitions_def=dumps,
    deps=[dump],
    group_name="datasets",
    owners=OWNERS,
    tags={"stage": "data"},
    kinds={"parquet"},
    pool="processor",
    code_version=ROWS_VERSION,
    automation_condition=dg.AutomationCondition.eager() & dg.AutomationCondition.all_deps_blocking_checks_passed(),
)
def positions(
    context: dg.AssetExecutionContext, config: Form[PositionsOptions], datasets: Datasets, compute: Compute
) -> Result:
    """Packed positions and move labels of a dump, as Parquet shards split by game, with a manifest."""
    with checked(context, datasets, "`replace: true` in the launchpad's config builds it anew"):
        options = options_of(config)
        source, out = datasets.source(context.partition_key), datasets.positions(context.partition_key)
        if not told(context) and (before := remembered(out)):
            options = replace(options, ingest=filled(IngestConfig, before))
            context.log.info(f"the run names no options: built with those of the positions that are there, {before}")
        version = version_of([source])  # of before it is read: one that changes meanwhile is read again
        work = partial(tasks.ingest, source, out, options.ingest)
        work = partial(work, workers=options.workers, engine=compute.name, replace=options.replace)
        begin = time.time()
        manifest = run_child(work, progress=live(context), lock=out)
        seconds = time.time() - begin if (out / MANIFEST).stat().st_mtime >= begin else None
    hashes = [source["sha256"] for source in manifest["sources"]]
    return Result(
        metadata=metadata.of_positions(out, manifest, seconds) | {DUMP_VERSION: version},
        data_version=metadata.data_version(hashes, manifest["config"], CODE_VERSION, manifest.get("code")),
    )


@dg.asset(
    deps=[positions],
    group_name="datasets",
    owners=OWNERS,
    tags={"stage": "data"},
    kinds={"json"},
    pool="processor",
    code_version=code_of("pipeline/dataset"),
)
def training_set(context: dg.AssetExecutionContext, config: Form[TrainingSetOptions], datasets: Datasets) -> Result:
    """Datasets joined for training, none of them copied: the latest month is held out, and all are audited together."""
    with checked(context, datasets, "choose another `name` in the launchpad's config"):
        options = options_of(config)
        shards = inputs(context, datasets, options.positions)
        out = datasets.training_set(options.name or options.named_by(shards))
        tick = live(context)
        join = partial(tasks.join, shards, out, options.join, remove=options.remove)
        page = run_child(join, progress=tick, lock=out)
        folder = datasets.path / "reports" / "training_sets" / out.name
        work = partial(tasks.audit, [out], folder)
        audit = run_child(work, progress=tick) if options.audit else None
    return Result(
        metadata=metadata.of_training_set(out, page, audit, folder),
        data_version=metadata.data_version(page, CODE_VERSION),
    )


@dg.asset(
    deps=[training_set],
    group_name="model",
    owners=OWNERS,
    tags={"stage": "training"},
    kinds={"pytorch"},
    pool="accelerator",
    code_version=code_of("model/data", "model/network", "model/training"),
)
def checkpoint(context: dg.AssetExecutionContext, config: Form[CheckpointOptions], datasets: Datasets) -> Result:
    """A trained policy-value network: safetensors and a card, with its training curves. A retry continues it."""
    with checked(context, datasets, "choose another `name` in the launchpad's config"):
        options = options_of(config)
        named = datasets.training_set(options.training_set) if options.training_set else None
        joined = named or newest(training_set.key, context)
        root = context.run.root_run_id or context.run.run_id
        out = datasets.checkpoint(options.name or f"{options.preset}-{root[:8]}")
        length = {"minutes": options.train.minutes, "steps": options.train.steps, "epochs": options.train.epochs}
        tell(context, preset=options.preset, training_set=joined.name, checkpoint=out.name, **length)
        work = partial(tasks.train, [joined], options.preset, options.train, out)
        card = run_child(work, progress=live(context), lock=out)
    return Result(
        metadata=metadata.of_checkpoint(out, card) | {TRAINED_ON: dg.MetadataValue.path(joined)},
        data_version=metadata.data_version(card["data"], card["config"], options.preset, CODE_VERSION),
    )


@dg.asset(
    deps=[checkpoint, positions],
    group_name="reports",
    owners=OWNERS,
    tags={"stage": "evaluation"},
    kinds={"polars"},
    pool="accelerator",
    code_version=code_of("pipeline/evaluation", "model/inference", "model/metrics.py"),
)
def accuracy_report(
    context: dg.AssetExecutionContext, config: Form[ReportOptions], datasets: Datasets, compute: Compute
) -> Result:
    """How often the network's first choice is the human's move, on games that it never saw."""
    with checked(context, datasets):
        options = options_of(config)
        named = datasets.checkpoint(options.checkpoint) if options.checkpoint else None
        network = named or newest(checkpoint.key, context)
        shards = inputs(context, datasets, options.positions)
        ratings = replace(options.ratings, engine=compute.uci_engine)
        folder = datasets.path / "reports" / network.name
        reports = {}
        for path in shards:
            work = partial(tasks.report, network, path, options.split, options.rule, ratings, folder / path.name)
            reports[path.name] = run_child(work, progress=live(context))
        probe = run_child(partial(tasks.probe, network, shards[0], options.split, metadata.PROBED, drawn=options.drawn))
        drawings = metadata.drawings(shards[0], options.split, probe["choices"])
        hashes = [file_hash(path / MANIFEST) for path in shards] + [file_hash(network / "checkpoint.json")]
        tell(context, checkpoint=network.name, top1=f"{metadata.overall(reports)['top1']:.4f}")
    return Result(
        metadata=metadata.of_report(network, reports, folder, drawings),
        data_version=metadata.data_version(hashes, options.split, options.rule, CODE_VERSION),
    )


@dg.asset(
    deps=[accuracy_report],
    group_name="reports",
    owners=OWNERS,
    tags={"stage": "evaluation"},
    kinds={"json"},
    code_version=code_of("pipeline/defs/pages/leaderboards.py"),
)
def leaderboard(datasets: Datasets) -> Result:
    """All checkpoints that were ever reported on, by dataset and top-1, and the best of each preset; figures compare only
    where their rules are the same.
    """
    found = leaderboards.of_leaderboard(datasets.path / "reports")
    return Result(metadata=found, data_version=metadata.data_version(str(found["leaderboard"].records)))


def told(context: dg.AssetExecutionContext) -> bool:
    """Return whether the run's configuration names options of the asset; those of automation and of plain clicks name none."""
    config: dict[str, Any] = dict(context.run.run_config)
    return context.op_execution_context.op.name in config.get("ops", {})


def inputs(context: dg.AssetExecutionContext, datasets: Datasets, names: tuple[str, ...]) -> list[Path]:
    """Return the positions datasets to work on, those named or all.

    Raises UserError where a materialised one is not there, or has failed a check that blocks.
    """
    found = datasets.materialised(names, promised(context.instance))
    for path in found:
        forbidden(context.instance, positions.key, path.name)
    return found


def newest(key: dg.AssetKey, context: dg.AssetExecutionContext) -> Path:
    """Return the folder that `folder_of` finds; UserError where it is not there, or has failed a check that blocks."""
    folder = folder_of(key, context.instance, context.run)
    if not folder.is_dir():
        what = key.to_user_string()
        raise UserError(
            f"the {what} that was materialised last is not in {folder}: materialise {what} again, or name one"
        )
    forbidden(context.instance, key)
    return folder


def folder_of(key: dg.AssetKey, instance: dg.DagsterInstance, run: dg.DagsterRun, name: str = "path") -> Path:
    """Return the folder, metadata `name`, of the asset that this run materialised, or one that it retries; else the newest."""
    kind = dg.DagsterEventType.ASSET_MATERIALIZATION
    runs = [name for name in (run.run_id, run.parent_run_id, run.root_run_id) if name]
    events = [entry.asset_materialization for name in runs for entry in reversed(instance.all_logs(name, of_type=kind))]
    event = instance.get_latest_materialization_event(key)
    events.append(event.asset_materialization if event else None)
    found = next((one for one in events if one is not None and one.asset_key == key), None)
    if found is None:
        what = key.to_user_string()
        raise UserError(f"no {what} has been materialised: materialise one, or name one in datasets/{what}s")
    return Path(str(found.metadata[name].value))


def tell(context: dg.AssetExecutionContext, **values: Any) -> None:
    """Tag the run as `fianchetto/NAME` with what tells it from others in the list of runs; leave out what is None or 0."""
    tags = {f"fianchetto/{name}": str(value) for name, value in values.items() if value}
    context.instance.add_run_tags(context.run.run_id, tags)


def live(context: dg.AssetExecutionContext) -> Progress:
    """Return a progress that logs observations of the asset, which its Plots view draws while the run goes on.

    See `Spacing` for how many.
    """
    partition = context.partition_key if context.assets_def.partitions_def is not None else None
    spacing, part = Spacing(time.monotonic()), _Part("", "", 0, 0.0)

    def progress(tick: Tick) -> None:
        nonlocal part
        now = time.monotonic()
        begun = (part.stage, part.unit) != (tick.stage, tick.unit) or tick.done < part.first
        if begun:
            part = _Part(tick.stage, tick.unit, tick.done, now)
        if spacing.due(now) or (begun and tick.stage):  # the name of a stage is shown at once
            values = observed(tick, tick.done - part.first, now - part.began)
            context.log_event(dg.AssetObservation(asset_key=context.asset_key, partition=partition, metadata=values))

    return progress


class _Part(NamedTuple):
    """A part of the work, of which the time that is left is told: one stage and unit."""

    stage: str
    unit: str
    first: int
    """Units done when it was seen first."""
    began: float


def observed(tick: Tick, gained: int, seconds: float) -> dict[str, Any]:
    """Return what an observation shows of a tick; stage, percent and minutes left first: a run's page cuts long ones off.

    `gained`: how much was done in the last `seconds`.
    """
    values: dict[str, Any] = {"stage": tick.stage} if tick.stage else {}
    if tick.total:
        values["percent"] = round(100 * tick.done / tick.total, 1)
        if gained > 0:
            values["minutes_left"] = round(seconds / 60 * (tick.total - tick.done) / gained, 1)
    values |= {name: value if isinstance(value, int) else float(f"{value:.4g}") for name, value in tick.values.items()}
    return values | {{"B": "bytes", "s": "seconds"}.get(tick.unit, tick.unit): tick.done}


class Spacing:
    """When observations are due: each second at first, so that a curve shows soon, then after a sixtieth of the time so far.

    At most every 30 seconds: about 320 in the first hour and 120 in each later one, where one a second would be 3,600.
    """

    def __init__(self, now: float) -> None:
        self.began = self.last = now

    def due(self, now: float) -> bool:
        """Return whether one is due, which is then taken for made."""
        if now - self.last < min(30.0, max(1.0, (now - self.began) / 60)):
            return False
        self.last = now
        return True


@contextmanager
def checked(context: dg.AssetExecutionContext, datasets: Datasets, otherwise: str = "") -> Iterator[None]:
    """Check the options of all assets of the run before the work of one of them, which is done `plainly`."""
    with plainly(otherwise):
        look_ahead(context, datasets)
        yield


@contextmanager
def plainly(otherwise: str = "") -> Iterator[None]:
    """Turn a mistake that a person can mend into a failed step that says just that, in the UI's words.

    `otherwise`: what to do in the UI where the command line would be told to choose another folder.
    """
    try:
        yield
    except UserError as error:
        raise dg.Failure(description=in_ui(str(error), otherwise), allow_retries=False) from error
