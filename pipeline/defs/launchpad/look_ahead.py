"""Checks made before a run does any work: the options of all its assets, and blocking checks that failed earlier.

Dagster checks names, types and choices of a run's configuration at launch. A value out of range would otherwise be found when
its asset begins, which may be hours later.
"""

from collections.abc import Collection, Mapping
from typing import Any

import dagster as dg

from engine.errors import UserError
from pipeline.defs.launchpad.forms import build_options
from pipeline.defs.launchpad.options import (
    CheckpointOptions,
    PositionsOptions,
    ReportOptions,
    StrengthOptions,
    TrainingSetOptions,
    TunedOptions,
)

OPTIONS: Mapping[str, type[Any]] = {
    "positions": PositionsOptions,
    "training_set": TrainingSetOptions,
    "checkpoint": CheckpointOptions,
    "accuracy_report": ReportOptions,
    "tuned_checkpoint": TunedOptions,
    "strength_report": StrengthOptions,
}
"""Options by the name of the asset."""
BLOCKING: Mapping[str, tuple[str, ...]] = {
    "positions": ("files_match_manifest", "no_game_in_two_splits", "rows_match_source"),
    "checkpoint": ("loads_with_finite_loss",),
}
"""Blocking checks by asset: if one fails, downstream assets do not run, in this run and in later ones."""
MOST_CHECKS = 10_000
"""Latest evaluations of a check that are searched."""


def check_options(context: dg.AssetExecutionContext) -> None:
    """Check the options of all assets of the run; raises UserError that names the asset."""
    step = context.op_execution_context
    ops = dg.validate_run_config(step.job_def, dict(context.run.run_config))["ops"]
    this = context.asset_key.to_user_string()
    for name in (name for name in OPTIONS if name in ops):
        try:
            build_options(OPTIONS[name], ops[name]["config"])
        except UserError as error:
            raise UserError(str(error) if name == this else f"{name}: {error}") from error


def require_no_failed_check(
    instance: dg.DagsterInstance, asset: dg.AssetKey, partitions: Collection[str | None] = (None,)
) -> None:
    """Raise UserError if a blocking check of an asset, or of one of its partitions, failed the last time."""
    name = asset.to_user_string()
    for check in BLOCKING.get(name, ()):
        last = find_last_checks(instance, asset, check)
        for partition in partitions:
            if partition in last and last[partition].status.value == "FAILED":
                subject = f"{name} of {partition}" if partition else f"the {name}"
                raise UserError(
                    f"{subject} failed the check {check} last time: materialize it again, or execute the check again"
                )


def find_last_checks(instance: dg.DagsterInstance, asset: dg.AssetKey, check: str) -> dict[str | None, Any]:
    """Return the last finished evaluation of a check by partition, as Dagster's records."""
    history = instance.event_log_storage.get_asset_check_execution_history
    records = history(dg.AssetCheckKey(asset, check), limit=MOST_CHECKS)
    return {record.partition: record for record in reversed(records) if record.status.value != "PLANNED"}


def materialized_dumps(instance: dg.DagsterInstance) -> set[str]:
    """Return the dumps whose positions Dagster lists as materialized."""
    found = instance.get_materialized_partitions(dg.AssetKey("positions"))
    return found & set(instance.get_dynamic_partitions("dumps"))
