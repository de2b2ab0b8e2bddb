"""The assets, nouns from dump to report: partition key -> options -> one library call in a child -> metadata."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dagster as dg

from engine.encoding import ENCODING_VERSION
from engine.errors import UserError
from engine.progress import Progress, Tick
from pipeline.defs import checks, metadata
from pipeline.defs.child import run_child
from pipeline.defs.forms import filled, form, plain
from pipeline.defs.options import CheckpointOptions, PositionsOptions, ReportOptions
from pipeline.defs.resources import Compute, Datasets
from pipeline.shards import FORMAT_VERSION, MANIFEST, file_hash
from pipeline.sources import require

if TYPE_CHECKING:
    Result = dg.MaterializeResult[None]
else:
    Result = dg.MaterializeResult  # Dagster reads the annotation and knows it bare only

dumps = dg.DynamicPartitionsDefinition(name="dumps")
CODE_VERSION = f"encoding {ENCODING_VERSION}, format {FORMAT_VERSION}"


@dg.asset(partitions_def=dumps, group_name="datasets", kinds={"file"}, code_version="1")
def dump(context: dg.AssetExecutionContext, datasets: Datasets) -> Result:
    """A PGN dump in `datasets/dumps/`, one file a partition; `sample` is the embedded one."""
    with plainly():
        source = datasets.source(context.partition_key)
        require(str(source))
        digest = file_hash(source)
    return Result(
        metadata={
            "path": dg.MetadataValue.path(source),
            "dagster/uri": source.as_uri(),
            "bytes": source.stat().st_size,
            "sha256": digest,
        },
        data_version=dg.DataVersion(digest),
    )


@dg.asset(
    partitions_def=dumps,
    deps=[dump],
    group_name="datasets",
    kinds={"parquet"},
    pool="processor",
    code_version=CODE_VERSION,
    config_schema=form(PositionsOptions),
    check_specs=checks.POSITIONS,
)
def positions(context: dg.AssetExecutionContext, datasets: Datasets, compute: Compute) -> Result:
    """Packed positions and move labels of a dump, as Parquet shards split by game, with a manifest."""
    with plainly():
        options = filled(PositionsOptions, context.op_execution_context.op_config)
        source, out = datasets.source(context.partition_key), datasets.positions(context.partition_key)
        request: dict[str, Any] = {"source": str(source), "out": str(out), "config": plain(options.ingest)}
        request |= {"workers": options.workers, "engine": compute.name, "replace": options.replace}
        begin = time.time()
        manifest = run_child("ingest", request, progress=live(context, every=5.0), lock=out)
        seconds = time.time() - begin if (out / MANIFEST).stat().st_mtime >= begin else None
        request = {"positions": str(out), "source": str(source), "count": options.verified_rows}
        found = run_child("verify", request)
    hashes = [source["sha256"] for source in manifest["sources"]]
    return Result(
        metadata=metadata.of_positions(out, manifest, seconds),
        check_results=checks.of_positions(found, options.verified_rows),
        data_version=metadata.data_version(hashes, manifest["config"], CODE_VERSION),
    )


@dg.asset(
    deps=[positions],
    group_name="model",
    kinds={"pytorch"},
    pool="accelerator",
    code_version=CODE_VERSION,
    config_schema=form(CheckpointOptions),
    check_specs=checks.CHECKPOINT,
)
def checkpoint(context: dg.AssetExecutionContext, datasets: Datasets) -> Result:
    """A trained policy-value network: safetensors and a card, with its training curves. A retry continues it."""
    with plainly():
        options = filled(CheckpointOptions, context.op_execution_context.op_config)
        shards = [str(path) for path in datasets.materialised(options.positions)]
        root = context.run.root_run_id or context.run.run_id
        out = datasets.checkpoint(options.name or f"{options.preset}-{root[:8]}")
        request: dict[str, Any] = {
            "positions": shards,
            "preset": options.preset,
            "config": plain(options.train),
            "out": str(out),
        }
        card = run_child("train", request, progress=live(context, every=1.0), lock=out)
        request = {"checkpoint": str(out), "positions": shards[0], "split": None, "count": metadata.PROBED, "drawn": 0}
        probe = run_child("probe", request)
    return Result(
        metadata=metadata.of_checkpoint(out, card),
        check_results=checks.of_checkpoint(probe),
        data_version=metadata.data_version(card["data"], card["config"], options.preset, CODE_VERSION),
    )


@dg.asset(
    deps=[checkpoint, positions],
    group_name="reports",
    kinds={"polars"},
    pool="accelerator",
    code_version=CODE_VERSION,
    config_schema=form(ReportOptions),
    check_specs=checks.REPORT,
)
def accuracy_report(context: dg.AssetExecutionContext, datasets: Datasets) -> Result:
    """How often the network's first choice is the human's move, on games that it never saw."""
    with plainly():
        options = filled(ReportOptions, context.op_execution_context.op_config)
        named = datasets.checkpoint(options.checkpoint) if options.checkpoint else None
        network = named or trained(context.instance, context.run)
        shards = datasets.materialised(options.positions)
        where: dict[str, Any] = {"checkpoint": str(network), "split": options.split, "rule": plain(options.rule)}
        folder = datasets.path / "reports" / network.name
        reports = {}
        for path in shards:
            tick = live(context, every=5.0)
            reports[path.name] = run_child(
                "report", where | {"positions": str(path), "out": str(folder / path.name)}, progress=tick
            )
        request = where | {"positions": str(shards[0]), "count": metadata.PROBED, "drawn": options.drawn}
        probe = run_child("probe", request)
        drawings = metadata.drawings(shards[0], options.split, probe["choices"])
        inputs = [file_hash(path / MANIFEST) for path in shards] + [file_hash(network / "checkpoint.json")]
    return Result(
        metadata=metadata.of_report(network, reports, folder, drawings),
        check_results=checks.of_report(metadata.overall(reports)),
        data_version=metadata.data_version(inputs, options.split, plain(options.rule), CODE_VERSION),
    )


def trained(instance: dg.DagsterInstance, run: dg.DagsterRun) -> Path:
    """Give the folder of the checkpoint that this run materialised, or one that it retries; else of the newest."""
    kind = dg.DagsterEventType.ASSET_MATERIALIZATION
    runs = [name for name in (run.run_id, run.parent_run_id, run.root_run_id) if name]
    made = [entry.asset_materialization for name in runs for entry in reversed(instance.all_logs(name, of_type=kind))]
    event = instance.get_latest_materialization_event(checkpoint.key)
    made.append(event.asset_materialization if event else None)
    found = next((one for one in made if one is not None and one.asset_key == checkpoint.key), None)
    if found is None:
        raise UserError("no checkpoint has been materialised: train one, or name one in datasets/checkpoints")
    return Path(str(found.metadata["path"].value))


def live(context: dg.AssetExecutionContext, *, every: float) -> Progress:
    """Log ticks as observations of the asset, which its Plots view draws while the run goes on."""
    last = time.monotonic()
    partition = context.partition_key if context.assets_def.partitions_def is not None else None

    def progress(tick: Tick) -> None:
        nonlocal last
        if time.monotonic() - last < every:
            return
        last = time.monotonic()
        values = {tick.unit: tick.done} | dict(tick.values)
        context.log_event(dg.AssetObservation(asset_key=context.asset_key, partition=partition, metadata=values))

    return progress


@contextmanager
def plainly() -> Iterator[None]:
    """Turn a mistake that a person can mend into a failed step that says just that."""
    try:
        yield
    except UserError as error:
        raise dg.Failure(description=str(error), allow_retries=False) from error
