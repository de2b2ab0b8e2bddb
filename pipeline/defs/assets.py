"""The assets from dump to accuracy report.

Each asset but `dump` reads its options, calls the library in a child process, and returns metadata.
"""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dagster as dg

from engine.errors import UserError
from engine.json_files import parse_json, read_json, validate_content
from model.card import CARD_FILE, Card
from model.training.config import TrainConfig
from pipeline.dataset.dataset import TRAINING_SET_FILE, Dataset, is_training_set
from pipeline.dataset.files.columns import MANIFEST
from pipeline.dataset.join import join
from pipeline.defs import checks, tasks
from pipeline.defs.launchpad.forms import Form, build_options, read_form
from pipeline.defs.launchpad.options import (
    CheckpointOptions,
    PositionsOptions,
    ReportOptions,
    TrainingSetOptions,
    read_saved_settings,
)
from pipeline.defs.pages import metadata
from pipeline.defs.pages.metadata import CODE_VERSION
from pipeline.defs.resources import DataFolder
from pipeline.defs.steps import (
    TRAINED_ON,
    dump_partitions,
    find_input,
    find_inputs,
    find_training_set_of,
    report_user_errors,
    run_step,
)
from pipeline.dumps.source import require_dump
from pipeline.ingest.chunk import ROWS_VERSION, IngestConfig
from pipeline.samples.shipped import EMBEDDED_CHECKPOINT, MIN_SCRATCH_POSITIONS
from pipeline.storage.stores import hash_file
from pipeline.training.train import train_on_datasets

if TYPE_CHECKING:
    Result = dg.MaterializeResult[None]
else:
    Result = dg.MaterializeResult  # Dagster reads the annotation, and rejects the generic form

FINETUNING_LEARNING_RATE = 5e-4
"""Default learning rate of a training that starts from a checkpoint."""
REPLACE_REMEDY = "to build it again, set `replace: true` in the launchpad"
RENAME_REMEDY = "choose another `name` in the launchpad"


@dg.asset(partitions_def=dump_partitions, group_name="datasets", kinds={"file"}, code_version="1")
def dump(context: dg.AssetExecutionContext, datasets: DataFolder) -> Result:
    """A file of games. Each PGN file in `datasets/dumps/` appears as a partition within a minute.

    The job `first_network` downloads a month of Lichess games, or any URL, into this folder.
    """
    with report_user_errors():
        source = datasets.find_dump(context.partition_key)
        require_dump(str(source))
        digest = hash_file(source)
    file = {"bytes": source.stat().st_size, "sha256": digest}
    return Result(
        metadata=metadata.describe_path(source) | file, data_version=dg.DataVersion(digest)
    )


@dg.asset(
    partitions_def=dump_partitions,
    deps=[dump],
    group_name="datasets",
    kinds={"parquet"},
    pool="processor",
    code_version=f"{CODE_VERSION}, rows {ROWS_VERSION}",  # a new version may produce different rows
)
def positions(
    context: dg.AssetExecutionContext, config: Form[PositionsOptions], datasets: DataFolder
) -> Result:
    """A dump's positions with the moves played, in Parquet files (shards), split by game."""
    with report_user_errors(REPLACE_REMEDY):
        options = read_form(config)
        source = datasets.find_dump(context.partition_key)
        out = datasets.result_folder("positions", context.partition_key)
        # the button Materialize, without the launchpad, sets no options
        given: Any = context.run.run_config.get("ops", {})
        if "positions" not in given and (saved := read_saved_settings(out)):
            options = replace(options, ingest=build_options(IngestConfig, {}, saved))
            context.log.info(
                f"the run has no options: using those of the existing positions, {saved}"
            )
        work = partial(tasks.ingest, source, out, options.ingest, engine=datasets.executor)
        work = partial(work, workers=options.workers, replace=options.replace)
        manifest = run_step(context, work, lock=out)
    hashes = [source["sha256"] for source in manifest["sources"]]
    return Result(
        metadata=metadata.describe_positions(out, manifest),
        data_version=metadata.hash_data_version(
            hashes, manifest["config"], CODE_VERSION, manifest["rows_version"]
        ),
    )


# A job for both assets: before it materializes positions alone, the UI warns that the dump is not
# materialized, and asks for a confirmation.
build_positions = dg.define_asset_job(
    "build_positions",
    [dump, positions],
    description="Turn one dump into positions. Without options, the settings of existing "
    "positions are used.",
)


@dg.asset(
    deps=[positions],
    group_name="datasets",
    kinds={"json"},
    pool="processor",
    code_version=CODE_VERSION,
    check_specs=checks.make_specs("training_set"),
)
def training_set(
    context: dg.AssetExecutionContext, config: Form[TrainingSetOptions], datasets: DataFolder
) -> Result:
    """Positions joined for training without copying; by default, the newest games are held out."""
    with report_user_errors(RENAME_REMEDY):
        options = read_form(config)
        shards = find_inputs(context, datasets, options.positions)
        out = datasets.result_folder("training_sets", options.name or options.derive_name(shards))
        work = partial(join, shards, out, options.join, remove=options.remove)
        page = run_step(context, work, lock=out)
        folder = datasets.path / "reports" / "training_sets" / out.name
        audit = None
        if options.audit:
            audit = run_step(context, partial(tasks.audit, [out], folder))
    return Result(
        metadata=metadata.describe_training_set(out, page, audit, folder),
        check_results=[checks.evaluate_training_set(page)],
        data_version=metadata.hash_data_version(page, CODE_VERSION),
    )


@dg.asset(
    deps=[training_set],
    group_name="model",
    kinds={"pytorch"},
    pool="accelerator",
    code_version=CODE_VERSION,
)
def checkpoint(
    context: dg.AssetExecutionContext, config: Form[CheckpointOptions], datasets: DataFolder
) -> Result:
    """A trained policy-value network and its training curves. A retried run resumes training."""
    with report_user_errors(RENAME_REMEDY):
        options = read_form(config)
        data = find_input(context, datasets, training_set.key, options.training_set)
        root = context.run.root_run_id or context.run.run_id
        out = datasets.result_folder("checkpoints", options.name or f"{options.preset}-{root[:8]}")
        start, train_config, reason = choose_start(options, data, out, datasets)
        context.log.info(f"training starts from {reason}")
        work = partial(train_on_datasets, [data], options.preset, train_config, out, start=start)
        card = run_step(context, work, lock=out)
    return Result(
        metadata=metadata.describe_checkpoint(out, card)
        | {TRAINED_ON: dg.MetadataValue.path(data), "started_from": reason},
        data_version=metadata.hash_data_version(
            card["data"], card["config"], options.preset, CODE_VERSION
        ),
    )


@dg.asset(
    deps=[checkpoint, training_set],
    group_name="reports",
    kinds={"polars"},
    pool="accelerator",
    code_version=CODE_VERSION,
    check_specs=checks.make_specs("accuracy_report"),
)
def accuracy_report(
    context: dg.AssetExecutionContext, config: Form[ReportOptions], datasets: DataFolder
) -> Result:
    """How often the network's first choice is the move played, in games that it has not seen.

    `moves_found` is this share, with its 95 % confidence interval. The run's tag `top1` shows it.
    """
    with report_user_errors():
        options = read_form(config)
        network = find_input(context, datasets, checkpoint.key, options.checkpoint)
        name, data = options.positions, None
        if name and not is_training_set(datasets.result_folder("training_sets", name)):
            (data,) = find_inputs(context, datasets, (name,))
        elif options.checkpoint and not name:
            data = find_training_set_of(network, context.instance)
        data = data or find_input(context, datasets, training_set.key, name)
        measured = data.name if options.split == "test" else f"{data.name}-{options.split}"
        out = datasets.path / "reports" / network.name / measured
        work = partial(tasks.report, network, data, options.split, options.rule, out)
        report = run_step(context, work)
        manifest = data / (TRAINING_SET_FILE if is_training_set(data) else MANIFEST)
        hashes = [hash_file(manifest), hash_file(network / CARD_FILE)]
    context.instance.add_run_tags(context.run.run_id, {"top1": f"{100 * report['top1']:.1f} %"})
    return Result(
        metadata=metadata.describe_report(network, data, report, out),
        check_results=[checks.evaluate_report(report)],
        data_version=metadata.hash_data_version(hashes, options.split, options.rule, CODE_VERSION),
    )


def choose_start(
    options: CheckpointOptions, data: Path, out: Path, datasets: DataFolder
) -> tuple[Path | None, TrainConfig, str]:
    """Return the starting checkpoint (None for random weights), the configuration and the reason.

    With `auto`, a run that already exists in `out` keeps its starting checkpoint. A new run on few
    positions starts from the embedded network if the preset matches. With a starting checkpoint,
    FINETUNING_LEARNING_RATE replaces the default learning rate.
    """
    start, reason = None, "start is set"
    if options.start == "auto" and (out / CARD_FILE).exists():
        start, reason = _read_start(out, datasets), "the resumed run started there"
    elif options.start == "auto":
        count = Dataset.open(data).count_rows("train")
        reason = f"{count:,} positions"
        if (
            parse_json((EMBEDDED_CHECKPOINT / CARD_FILE).read_bytes())["preset"]["name"]
            != options.preset
        ):
            reason += f", and {options.preset} is not the embedded network's preset"
        elif count < MIN_SCRATCH_POSITIONS:
            start = EMBEDDED_CHECKPOINT
    elif options.start == "embedded":
        start = EMBEDDED_CHECKPOINT
    elif options.start != "scratch":
        start = datasets.result_folder("checkpoints", options.start)
        if not start.is_dir():
            raise UserError(f"there is no checkpoint called {options.start!r} ({start})")
    config = options.train
    if start is None:
        return None, config, f"random weights ({reason})"
    if config.learning_rate == TrainConfig(minutes=1.0).learning_rate:
        config = replace(config, learning_rate=FINETUNING_LEARNING_RATE)
    return start, config, f"{start.name} ({reason}), learning rate {config.learning_rate:g}"


def _read_start(out: Path, datasets: DataFolder) -> Path | None:
    """Return the starting checkpoint of the run in `out`; None for random weights."""
    card = read_json(out / CARD_FILE, UserError)
    validate_content(out / CARD_FILE, card, Card, UserError)
    start = card["data"].get("start")
    if start is None:
        return None
    name = str(start.get("name", ""))
    return (
        EMBEDDED_CHECKPOINT
        if name == EMBEDDED_CHECKPOINT.name
        else datasets.result_folder("checkpoints", name)
    )
