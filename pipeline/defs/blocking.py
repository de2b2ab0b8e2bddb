"""Blocking checks that failed earlier: later runs do not use what failed them."""

from collections.abc import Collection, Mapping
from typing import Any

import dagster as dg

from engine.errors import UserError

BLOCKING: Mapping[str, tuple[str, ...]] = {
    "positions": ("files_match_manifest", "no_game_in_two_splits", "rows_match_source"),
    "checkpoint": ("loads_with_finite_loss",),
}
"""Blocking checks by asset. If one fails, downstream assets do not run, now or in later runs."""
MOST_CHECKS = 10_000
"""Number of recent evaluations of a check that are searched."""


def require_no_failed_check(
    instance: dg.DagsterInstance, asset: dg.AssetKey, partitions: Collection[str | None] = (None,)
) -> None:
    """Raise UserError if a blocking check of an asset, or of a partition, failed last time."""
    name = asset.to_user_string()
    for check in BLOCKING.get(name, ()):
        last = find_last_checks(instance, asset, check)
        for partition in partitions:
            if partition in last and last[partition].status.value == "FAILED":
                subject = f"{name} of {partition}" if partition else f"the {name}"
                raise UserError(
                    f"{subject} failed the check {check} last time: materialize it again, or "
                    f"execute the check again"
                )


def find_last_checks(
    instance: dg.DagsterInstance, asset: dg.AssetKey, check: str
) -> dict[str | None, Any]:
    """Return the last finished evaluation of a check by partition, as Dagster's records."""
    history = instance.event_log_storage.get_asset_check_execution_history
    records = history(dg.AssetCheckKey(asset, check), limit=MOST_CHECKS)
    return {
        record.partition: record for record in reversed(records) if record.status.value != "PLANNED"
    }


def materialized_dumps(instance: dg.DagsterInstance) -> set[str]:
    """Return the dumps whose positions Dagster lists as materialized."""
    found = instance.get_materialized_partitions(dg.AssetKey("positions"))
    return found & set(instance.get_dynamic_partitions("dumps"))
