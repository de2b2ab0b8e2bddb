"""The assets from dump to leaderboard: options -> library call in a child process -> metadata."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dagster as dg

from engine.errors import UserError
from pipeline.dataset.dataset import TRAINING_SET, is_training_set
from pipeline.dataset.files.shards import MANIFEST, file_hash
from pipeline.dataset.join import join
from pipeline.defs import tasks
from pipeline.defs.blocking import materialized_dumps, require_no_failed_check
from pipeline.defs.child import run_child
from pipeline.defs.launchpad.forms import Form, build_options, read_form
from pipeline.defs.launchpad.options import (
    CheckpointOptions,
    PositionsOptions,
    ReportOptions,
    TrainingSetOptions,
    saved_settings,
)
from pipeline.defs.pages import metadata
from pipeline.defs.pages.metadata import CODE_VERSION
from pipeline.defs.progress import log_asset_progress
from pipeline.defs.resources import Compute, Datasets, version_of
from pipeline.defs.start import choose_start
from pipeline.dumps.source import require
from pipeline.ingest.chunk import ROWS_VERSION, IngestConfig
from pipeline.training.train import train_on

if TYPE_CHECKING:
    Result = dg.MaterializeResult[None]
else:
    Result = dg.MaterializeResult  # Dagster reads the annotation, and rejects the generic form

dumps = dg.DynamicPartitionsDefinition(name="dumps")
TRAINED_ON = "trained_on"
"""Metadata key of a checkpoint: the folder of its training set."""
DUMP_VERSION = "dump_version"
"""Metadata key of positions: the version of their dump, from `version_of`."""
REPLACE = "to build it again, set `replace: true` in the launchpad"
RENAME = "choose another `name` in the launchpad"
ADD_PARTITION = "add another partition"
"""Remedy for assets whose partition names their folder."""
REMEDIES = {
    "stopped": "materialize it again to continue",
    "damaged": "materialize `positions` again with `replace: true`",
    "member-changed": "materialize `training_set` again; an entry in `remove` takes the dataset "
    "out first",
    "workers": "set fewer `workers` in the launchpad",
}
"""Remedies for a Dagster user by error code; the command line has others."""


@dg.asset(
    partitions_def=dumps,
    group_name="datasets",
    kinds={"file"},
    code_version="1",
)
def dump(context: dg.AssetExecutionContext, datasets: Datasets) -> Result:
    """A PGN dump: each file in `datasets/dumps/` is a partition, listed within a minute.

    The job `fetch_month` downloads a month of Lichess into this folder; no asset downloads.
    """
    with report_user_errors():
        source = datasets.source(context.partition_key)
        require(str(source))
        digest = file_hash(source)
    facts: metadata.Metadata = {
        "path": dg.MetadataValue.path(source),
        "dagster/uri": source.as_uri(),
        "bytes": source.stat().st_size,
        "sha256": digest,
    }
    return Result(metadata=facts, data_version=dg.DataVersion(digest))


@dg.asset(
    partitions_def=dumps,
    deps=[dump],
    group_name="datasets",
    kinds={"parquet"},
    pool="processor",
    code_version=f"{CODE_VERSION}, rows {ROWS_VERSION}",  # a version may give other rows
)
def positions(
    context: dg.AssetExecutionContext,
    config: Form[PositionsOptions],
    datasets: Datasets,
    compute: Compute,
) -> Result:
    """A dump as packed positions and move labels, in Parquet shards split by game."""
    with report_user_errors(REPLACE):
        options = read_form(config)
        source = datasets.source(context.partition_key)
        out = datasets.positions(context.partition_key)
        # the sensor and a plain click set no options
        asked: Any = context.run.run_config.get("ops", {})
        if "positions" not in asked and (before := saved_settings(out)):
            options = replace(options, ingest=build_options(IngestConfig, before))
            context.log.info(
                f"the run has no options: using those of the existing positions, {before}"
            )
        # taken before reading, so that a change during the read is noticed
        version = version_of(source)
        work = partial(tasks.ingest, source, out, options.ingest)
        work = partial(work, workers=options.workers, engine=compute.name, replace=options.replace)
        manifest = run_child(work, progress=log_asset_progress(context), lock=out)
    hashes = [source["sha256"] for source in manifest["sources"]]
    return Result(
        metadata=metadata.describe_positions(out, manifest) | {DUMP_VERSION: version},
        data_version=metadata.data_version(
            hashes, manifest["config"], CODE_VERSION, manifest["rows_version"]
        ),
    )


@dg.asset(
    deps=[positions],
    group_name="datasets",
    kinds={"json"},
    pool="processor",
    code_version=CODE_VERSION,
)
def training_set(
    context: dg.AssetExecutionContext, config: Form[TrainingSetOptions], datasets: Datasets
) -> Result:
    """Datasets joined for training without copying. The newest games of each are held out."""
    with report_user_errors(RENAME):
        options = read_form(config)
        shards = find_inputs(context, datasets, options.positions)
        out = datasets.training_set(options.name or options.named_by(shards))
        progress = log_asset_progress(context)
        page = run_child(
            partial(join, shards, out, options.join, remove=options.remove),
            progress=progress,
            lock=out,
        )
        folder = datasets.path / "reports" / "training_sets" / out.name
        work = partial(tasks.audit, [out], folder)
        audit = run_child(work, progress=progress) if options.audit else None
    return Result(
        metadata=metadata.describe_training_set(out, page, audit, folder),
        data_version=metadata.data_version(page, CODE_VERSION),
    )


@dg.asset(
    deps=[training_set],
    group_name="model",
    kinds={"pytorch"},
    pool="accelerator",
    code_version=CODE_VERSION,
)
def checkpoint(
    context: dg.AssetExecutionContext, config: Form[CheckpointOptions], datasets: Datasets
) -> Result:
    """A trained policy-value network with its training curves. A retry resumes training."""
    with report_user_errors(RENAME):
        options = read_form(config)
        joined = find_input(datasets.training_set, options.training_set, training_set.key, context)
        root = context.run.root_run_id or context.run.run_id
        out = datasets.checkpoint(options.name or f"{options.preset}-{root[:8]}")
        start, settings, why = choose_start(options, joined, out, datasets)
        context.log.info(f"training starts from {why}")
        work = partial(train_on, [joined], options.preset, settings, out, start=start)
        card = run_child(work, progress=log_asset_progress(context), lock=out)
    return Result(
        metadata=metadata.describe_checkpoint(out, card)
        | {TRAINED_ON: dg.MetadataValue.path(joined), "started_from": why},
        data_version=metadata.data_version(
            card["data"], card["config"], options.preset, CODE_VERSION
        ),
    )


@dg.asset(
    deps=[checkpoint, training_set],
    group_name="reports",
    kinds={"polars"},
    pool="accelerator",
    code_version=CODE_VERSION,
)
def accuracy_report(
    context: dg.AssetExecutionContext, config: Form[ReportOptions], datasets: Datasets
) -> Result:
    """How often the network's first choice is the move that was played, in unseen games."""
    with report_user_errors():
        options = read_form(config)
        network = find_input(datasets.checkpoint, options.checkpoint, checkpoint.key, context)
        if options.positions and not is_training_set(datasets.training_set(options.positions)):
            (data,) = find_inputs(context, datasets, (options.positions,))
        elif (
            options.checkpoint
            and not options.positions
            and (own := find_own_set(context.instance, network))
        ):
            data = own
        else:
            data = find_input(datasets.training_set, options.positions, training_set.key, context)
        out = datasets.path / "reports" / network.name / data.name
        work = partial(
            tasks.report, network, data, options.split, options.rule, options.rating_rows, out
        )
        report = run_child(work, progress=log_asset_progress(context))
        page = data / (TRAINING_SET if is_training_set(data) else MANIFEST)
        hashes = [file_hash(page), file_hash(network / "checkpoint.json")]
    context.instance.add_run_tags(context.run_id, {"top1": f"{100 * report['top1']:.1f} %"})
    return Result(
        metadata=metadata.describe_report(network, data, report, out),
        data_version=metadata.data_version(hashes, options.split, options.rule, CODE_VERSION),
    )


@dg.asset(
    deps=[accuracy_report],
    group_name="reports",
    kinds={"json"},
    code_version="1",
)
def leaderboard(datasets: Datasets) -> Result:
    """All measured checkpoints by top-1, and the best of each preset.

    Compare figures of the same dataset and the same rule only.
    """
    found = metadata.describe_leaderboard(datasets.path / "reports")
    return Result(
        metadata=found, data_version=metadata.data_version(str(found["leaderboard"].records))
    )


def find_inputs(
    context: dg.AssetExecutionContext, datasets: Datasets, names: tuple[str, ...]
) -> list[Path]:
    """Return the positions to work on, those named or all.

    Raises UserError if materialized ones are missing, or failed a blocking check.
    """
    found = datasets.find_positions(names, materialized_dumps(context.instance))
    require_no_failed_check(context.instance, positions.key, [path.name for path in found])
    return found


def find_input(
    folder_of: Callable[[str], Path],
    named: str,
    key: dg.AssetKey,
    context: dg.AssetExecutionContext,
) -> Path:
    """Return the folder that the options name, or that from `find_folder`.

    Raises UserError if the latter is missing, or failed a blocking check.
    """
    if named:
        if not (folder := folder_of(named)).is_dir():
            raise UserError(f"there is no {key.to_user_string()} called {named!r} ({folder})")
        return folder
    folder, name = find_folder(key, context.instance, context.run), key.to_user_string()
    if not folder.is_dir():
        raise UserError(
            f"{folder}, the {name} that was materialized last, is missing: materialize it again, "
            f"or name one"
        )
    require_no_failed_check(context.instance, key)
    return folder


def find_own_set(instance: dg.DagsterInstance, network: Path) -> Path | None:
    """Return the training set that Dagster trained a checkpoint on, None if it is gone."""
    records = instance.fetch_materializations(checkpoint.key, limit=1000).records
    for found in (record.asset_materialization for record in records):
        if found is not None and found.metadata["path"].value == str(network):
            own = Path(str(found.metadata[TRAINED_ON].value))
            return own if own.is_dir() else None
    return None


def find_folder(
    key: dg.AssetKey, instance: dg.DagsterInstance, run: dg.DagsterRun, name: str = "path"
) -> Path:
    """Return the folder that this run materialized or retries, else the newest one.

    The metadata entry `name` of the materialization holds it.
    """
    kind = dg.DagsterEventType.ASSET_MATERIALIZATION
    runs = [id_ for id_ in (run.run_id, run.parent_run_id, run.root_run_id) if id_]
    events = [
        entry.asset_materialization
        for id_ in runs
        for entry in reversed(instance.all_logs(id_, of_type=kind))
    ]
    event = instance.get_latest_materialization_event(key)
    events.append(event.asset_materialization if event else None)
    found = next((one for one in events if one is not None and one.asset_key == key), None)
    if found is None:
        asset = key.to_user_string()
        raise UserError(
            f"no {asset} has been materialized: materialize one, or name one in datasets/{asset}s"
        )
    return Path(str(found.metadata[name].value))


@contextmanager
def report_user_errors(taken: str = "") -> Iterator[None]:
    """Turn a UserError into a failed step with its message and the remedy for a Dagster user.

    `taken` is the remedy if the output holds something else.
    """
    try:
        yield
    except dg.DagsterExecutionInterruptedError:
        kept = "stopped: what was finished is kept; re-execute the run to continue"
        raise dg.DagsterExecutionInterruptedError(kept) from None
    except UserError as error:
        remedy = (REMEDIES | {"taken": taken}).get(error.code) or error.remedy
        message = f"{error.problem}: {remedy}" if remedy else error.problem
        raise dg.Failure(description=message, allow_retries=False) from error
