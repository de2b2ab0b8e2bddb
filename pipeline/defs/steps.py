"""Code shared by all assets: inputs, child processes, live progress and errors."""

import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dagster as dg
from dagster._core.errors import DagsterUserCodeProcessError
from dagster_shared.error import SerializableErrorInfo

from engine.errors import UserError
from engine.progress import Progress, Tick
from pipeline.defs import child
from pipeline.defs.resources import DataFolder

DUMP_PARTITIONS = "dumps"
"""Dagster's name of the partitions of dumps and positions."""
dump_partitions = dg.DynamicPartitionsDefinition(name=DUMP_PARTITIONS)
"""Partitions of dumps and positions; `parse_dump_key` makes the keys from file names."""
TRAINED_ON = "trained_on"
"""Metadata key of a checkpoint; its value is the folder of the training set."""
BLOCKING_CHECKS: Mapping[str, tuple[str, ...]] = {
    "positions": ("files_match_manifest", "no_game_in_two_splits", "rows_match_source"),
    "checkpoint": ("loads_with_finite_loss",),
}
"""Blocking checks by asset. Until they pass again, downstream assets do not run."""
MAX_EVALUATIONS = 10_000
"""Maximum number of a check's newest evaluations that are searched for a failure."""
REMEDIES_BY_CODE = {
    "stopped": "materialize it again to continue",
    "damaged": "materialize `positions` again with `replace: true`",
    "member-changed": "materialize `training_set` again; an entry in `remove` takes the dataset "
    "out first",
    "workers": "set fewer `workers` in the launchpad",
}
"""Remedies for Dagster users by error code; they replace those for the command line."""


class StoppedError(DagsterUserCodeProcessError):
    """The run was stopped. Dagster shows this error's message without a stack trace."""

    def __init__(self) -> None:
        text = "stopped: finished work is kept; re-execute the run to continue"
        info = SerializableErrorInfo(message=text, stack=[], cls_name=None)
        super().__init__(text, user_code_process_error_infos=[info])  # type: ignore[no-untyped-call]


@contextmanager
def report_user_errors(taken: str = "") -> Iterator[None]:
    """Turn a UserError into a failed step, with a remedy for Dagster users.

    `taken` is the remedy if the output folder already contains something else. The termination of a
    run becomes StoppedError.
    """
    try:
        yield
    except dg.DagsterExecutionInterruptedError:
        raise StoppedError from None
    except UserError as error:
        remedy = (REMEDIES_BY_CODE | {"taken": taken}).get(error.code) or error.remedy
        message = f"{error.problem}: {remedy}" if remedy else error.problem
        raise dg.Failure(description=message, allow_retries=False) from error


def run_step(
    context: dg.AssetExecutionContext, work: Callable[..., Any], lock: Path | None = None
) -> Mapping[str, Any]:
    """Do an asset's work in a child process, log its progress, and return its result."""
    partition = context.partition_key if context.assets_def.partitions_def is not None else None
    progress = log_progress(context, context.asset_key, partition)
    return child.run_child(work, progress=progress, lock=lock)


# ---------------------------------------------------------------- progress


def log_progress(
    context: dg.AssetExecutionContext | dg.OpExecutionContext,
    asset: dg.AssetKey,
    partition: str | None,
) -> Progress:
    """Return a progress callback that logs observations of an asset, shown in its Plots view.

    The interval is a tenth of the elapsed time, from 2 to 60 seconds, which keeps the log short. A
    new stage is logged at once.
    """
    work_start = next_log = stage_start = time.monotonic()
    first = Tick(0, None, "")  # of the current stage

    def log_tick(tick: Tick) -> None:
        nonlocal next_log, first, stage_start
        now = time.monotonic()
        is_new = (first.stage, first.unit) != (tick.stage, tick.unit) or tick.done < first.done
        if is_new:
            first, stage_start = tick, now
        if now >= next_log or (is_new and tick.stage):
            next_log = now + min(60.0, max(2.0, (now - work_start) / 10))
            values = describe_tick(tick, tick.done - first.done, now - stage_start)
            context.log_event(
                dg.AssetObservation(asset_key=asset, partition=partition, metadata=values)
            )

    return log_tick


def describe_tick(tick: Tick, gained: int, seconds: float) -> dict[str, Any]:
    """Return the metadata of an observation; `gained` units were done in the last `seconds`.

    Stage, percentage and remaining minutes come first, because a run's page truncates long
    observations.
    """
    values: dict[str, Any] = {"stage": tick.stage} if tick.stage else {}
    if tick.total:
        values["percent"] = round(100 * tick.done / tick.total, 1)
        if gained > 0:
            values["minutes_left"] = round(seconds / 60 * (tick.total - tick.done) / gained, 1)
    for name, value in tick.values.items():
        values[name] = value if isinstance(value, int) else float(f"{value:.4g}")
    values[{"B": "bytes", "s": "seconds"}.get(tick.unit, tick.unit)] = int(tick.done)
    return values


# ---------------------------------------------------------------- inputs


def find_inputs(
    context: dg.AssetExecutionContext, datasets: DataFolder, names: tuple[str, ...]
) -> list[Path]:
    """Return the folders of the positions called `names`, or of all positions if it is empty.

    Raises UserError if any are missing or failed a blocking check.
    """
    found = datasets.find_positions(names, list_materialized_dumps(context.instance))
    partitions = [path.name for path in found]
    require_no_failed_check(context.instance, dg.AssetKey("positions"), partitions)
    return found


def find_input(
    context: dg.AssetExecutionContext, datasets: DataFolder, key: dg.AssetKey, name: str
) -> Path:
    """Return the folder `name` of an asset; if `name` is "", the one that `find_folder` returns.

    Raises UserError if the folder is missing, or if `name` is "" and a blocking check failed.
    """
    kind = key.to_user_string()
    if name:
        if not (folder := datasets.result_folder(f"{kind}s", name)).is_dir():
            raise UserError(f"there is no {kind} called {name!r} ({folder})")
        return folder
    folder = find_folder(key, context.instance, context.run)
    if not folder.is_dir():
        raise UserError(
            f"{folder}, the {kind} that was materialized last, is missing: materialize it again, "
            f"or name one"
        )
    require_no_failed_check(context.instance, key)
    return folder


def find_folder(
    key: dg.AssetKey, instance: dg.DagsterInstance, run: dg.DagsterRun, name: str = "path"
) -> Path:
    """Return a folder from the metadata entry `name` of an asset's materialization.

    A materialization by this run, or by the run that it retries, is preferred to the newest one.
    Raises UserError if there is none, or if it does not have this entry.
    """
    found = _list_materializations(instance, key)
    runs = (run.run_id, run.parent_run_id, run.root_run_id)
    own = [metadata for run_id, metadata in found if run_id in runs]
    if candidates := own or [metadata for _, metadata in found]:
        metadata = candidates[0]
        if name not in metadata:
            raise UserError(
                f"{metadata['path'].value} was made on the command line, so its materialization "
                f"has no metadata {name!r}: materialize it in Dagster"
            )
        return Path(str(metadata[name].value))
    asset = key.to_user_string()
    raise UserError(
        f"no {asset} has been materialized: materialize one, or name one in datasets/{asset}s"
    )


def find_training_set_of(network: Path, instance: dg.DagsterInstance) -> Path | None:
    """Return the training set of a checkpoint; None if it is unknown or has been deleted."""
    for _, metadata in _list_materializations(instance, dg.AssetKey("checkpoint")):
        if metadata["path"].value == str(network) and TRAINED_ON in metadata:
            training_set = Path(str(metadata[TRAINED_ON].value))
            return training_set if training_set.is_dir() else None
    return None


def _list_materializations(
    instance: dg.DagsterInstance, key: dg.AssetKey
) -> list[tuple[str, Mapping[str, Any]]]:
    """Return (run ID, metadata) of each materialization, newest first.

    Those that a user reported in the UI have no path and are left out.
    """
    found = []
    for record in instance.fetch_materializations(key, limit=1000).records:
        event = record.asset_materialization
        if event is not None and "path" in event.metadata:
            found.append((record.run_id, event.metadata))
    return found


def require_no_failed_check(
    instance: dg.DagsterInstance, asset: dg.AssetKey, partitions: Collection[str | None] = (None,)
) -> None:
    """Raise UserError if the last evaluation of a blocking check of any partition failed."""
    name = asset.to_user_string()
    read_history = instance.event_log_storage.get_asset_check_execution_history
    for check in BLOCKING_CHECKS.get(name, ()):
        records = read_history(dg.AssetCheckKey(asset, check), limit=MAX_EVALUATIONS)
        last_status = {
            record.partition: record.status.value
            for record in reversed(records)
            if record.status.value != "PLANNED"
        }
        for partition in partitions:
            if last_status.get(partition) == "FAILED":
                subject = f"{name} of {partition}" if partition else f"the {name}"
                raise UserError(
                    f"{subject} failed the check {check} last time: materialize it again, or "
                    f"execute the check again"
                )


def list_materialized_dumps(instance: dg.DagsterInstance) -> set[str]:
    """Return the dumps whose positions Dagster lists as materialized."""
    found = instance.get_materialized_partitions(dg.AssetKey("positions"))
    return found & set(instance.get_dynamic_partitions(DUMP_PARTITIONS))
