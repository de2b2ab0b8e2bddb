"""The options of every asset of a run, checked before the first of them begins.

Dagster checks names, types and choices of a run's configuration when it is launched, and nothing else: a range, or a folder
that is not there, would be found when its asset begins, which may be hours later.
"""

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import dagster as dg
from dagster._core.event_api import PartitionKeyFilter
from dagster._core.storage.asset_check_execution_record import (
    AssetCheckExecutionRecord,
    AssetCheckExecutionRecordStatus,
)

from engine.errors import UserError
from pipeline.defs.launchpad.forms import filled
from pipeline.defs.launchpad.options import (
    CheckpointOptions,
    PositionsOptions,
    ReportOptions,
    StrengthOptions,
    TrainingSetOptions,
    TunedOptions,
    VerifyOptions,
)
from pipeline.defs.resources import Datasets

OPTIONS: Mapping[str, type[Any]] = {
    "positions": PositionsOptions,
    "check_positions": VerifyOptions,
    "training_set": TrainingSetOptions,
    "checkpoint": CheckpointOptions,
    "accuracy_report": ReportOptions,
    "tuned_checkpoint": TunedOptions,
    "strength_report": StrengthOptions,
}
"""What the form of each asset or check asks."""
BLOCKING: Mapping[str, tuple[str, ...]] = {
    "positions": ("files_match_manifest", "no_game_in_two_splits", "rows_match_source"),
    "checkpoint": ("loads_with_finite_loss",),
}
"""Checks that block, by asset: a failed one keeps downstream assets from running, in this run and in later ones."""


def look_ahead(context: dg.AssetExecutionContext, datasets: Datasets) -> None:
    """Check the options of all assets of the run; raises UserError with the asset's name."""
    step = context.op_execution_context
    ops = dg.validate_run_config(step.job_def, dict(context.run.run_config))["ops"]
    asked = {}
    for name in (name for name in OPTIONS if name in ops):
        with _named(name):
            asked[name] = filled(OPTIONS[name], ops[name]["config"])
    made = {name: getattr(options, "name", "") for name, options in asked.items()}
    made["positions"] = step.partition_key if "positions" in ops and step.has_partition_key else ""
    own = context.asset_key.to_user_string()
    for name, options in asked.items():
        with _named("" if name == own else name):
            _there(options, made, datasets, promised(context.instance))


def forbidden(instance: dg.DagsterInstance, asset: dg.AssetKey, partition: str | None = None) -> None:
    """Raise UserError where a blocking check failed last time: what it forbade its own run, it forbids later ones.

    `partition`: that of the positions; None for an asset without partitions.
    """
    what = asset.to_user_string()
    for name, record in last_checks(instance, asset, partition).items():
        if record.status == AssetCheckExecutionRecordStatus.FAILED:
            of = f"{what} of {partition}" if partition else f"the {what}"
            raise UserError(
                f"{of} failed the check {name} last time: materialise it again, or execute the check once more"
            )


def last_checks(
    instance: dg.DagsterInstance, asset: dg.AssetKey, partition: str | None
) -> dict[str, AssetCheckExecutionRecord]:
    """Return the last evaluation of each blocking check of an asset, or of a partition of it; one that only began is none."""
    ended = {AssetCheckExecutionRecordStatus.SUCCEEDED, AssetCheckExecutionRecordStatus.FAILED}
    only = PartitionKeyFilter(key=partition) if partition else None
    found = {}
    for name in BLOCKING.get(asset.to_user_string(), ()):
        history = instance.event_log_storage.get_asset_check_execution_history
        for record in history(dg.AssetCheckKey(asset, name), limit=1, status=ended, partition_filter=only):
            found[name] = record
    return found


@contextmanager
def _named(asset: str) -> Iterator[None]:
    """Say a mistake with the asset whose option it is; "" for the one that begins now."""
    try:
        yield
    except UserError as error:
        raise UserError(f"{asset}: {error}" if asset else str(error)) from error


def promised(instance: dg.DagsterInstance) -> set[str]:
    """Return the dumps whose positions Dagster calls materialised."""
    return instance.get_materialized_partitions(dg.AssetKey("positions")) & set(
        instance.get_dynamic_partitions("dumps")
    )


def _there(options: Any, made: Mapping[str, str], datasets: Datasets, held: Collection[str]) -> None:
    """Check what options name: folders that are there, or that this run makes, networks and books."""
    shards = [name for name in getattr(options, "positions", ()) if name != made["positions"]]
    if shards:
        datasets.materialised(tuple(shards), held)
    folders = {"training_set": datasets.training_set, "checkpoint": datasets.checkpoint, "tuned": datasets.tuned}
    makers = {"tuned": "tuned_checkpoint"}
    for kind, folder in folders.items():
        name = getattr(options, kind, "")
        if name and name != made.get(makers.get(kind, kind)) and not folder(name).is_dir():
            raise UserError(f"there is no {kind.replace('_', ' ')} called {name!r} in {folder(name).parent}")
    if isinstance(options, TunedOptions):
        from pipeline.finetune.loop import require

        require(options.finetune)
