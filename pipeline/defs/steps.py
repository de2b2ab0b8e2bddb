"""Code shared by assets: inputs, child processes, live progress and errors."""

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
from pipeline.defs.resources import Datasets

DUMPS = "dumps"
dumps = dg.DynamicPartitionsDefinition(name=DUMPS)
"""Partitions of dumps and positions; keys are made from file names by `parse_key`."""
TRAINED_ON = "trained_on"
"""Metadata key for a checkpoint: the folder of its training set."""
BLOCKING: Mapping[str, tuple[str, ...]] = {
    "positions": ("files_match_manifest", "no_game_in_two_splits", "rows_match_source"),
    "checkpoint": ("loads_with_finite_loss",),
}
"""Blocking checks by asset. If one fails, downstream assets do not run, in this run or in later
ones."""
MAX_EVALUATIONS = 10_000
"""Maximum number of recent evaluations of a check to search."""
REMEDIES = {
    "stopped": "materialize it again to continue",
    "damaged": "materialize `positions` again with `replace: true`",
    "member-changed": "materialize `training_set` again; an entry in `remove` takes the dataset "
    "out first",
    "workers": "set fewer `workers` in the launchpad",
}
"""Remedies by error code, in a Dagster user's terms; they replace those of the command line."""


class StoppedError(DagsterUserCodeProcessError):
    """The run was stopped. Dagster shows this error's message without a stack trace."""

    def __init__(self) -> None:
        words = "stopped: finished work is kept; re-execute the run to continue"
        shown = SerializableErrorInfo(message=words, stack=[], cls_name=None)
        super().__init__(words, user_code_process_error_infos=[shown])  # type: ignore[no-untyped-call]


@contextmanager
def report_user_errors(taken: str = "") -> Iterator[None]:
    """Turn a UserError into a failed step, with its message and a remedy for Dagster users.

    A termination becomes StoppedError: steps that depend on this one do not run.

    `taken` is the remedy if the output folder already contains something else.
    """
    try:
        yield
    except dg.DagsterExecutionInterruptedError:
        raise StoppedError from None
    except UserError as error:
        remedy = (REMEDIES | {"taken": taken}).get(error.code) or error.remedy
        message = f"{error.problem}: {remedy}" if remedy else error.problem
        raise dg.Failure(description=message, allow_retries=False) from error


def run_step(
    context: dg.AssetExecutionContext, work: Callable[..., Any], lock: Path | None = None
) -> Mapping[str, Any]:
    """Do an asset's work in a child process, and log its progress."""
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
    began = due = started = time.monotonic()
    first = Tick(0, None, "")

    def progress(tick: Tick) -> None:
        nonlocal due, first, started
        now = time.monotonic()
        begins = (first.stage, first.unit) != (tick.stage, tick.unit) or tick.done < first.done
        if begins:
            first, started = tick, now
        if now >= due or (begins and tick.stage):
            due = now + min(60.0, max(2.0, (now - began) / 10))
            values = describe_tick(tick, tick.done - first.done, now - started)
            context.log_event(
                dg.AssetObservation(asset_key=asset, partition=partition, metadata=values)
            )

    return progress


def describe_tick(tick: Tick, gained: int, seconds: float) -> dict[str, Any]:
    """Return the metadata of an observation; `gained` units were done in the last `seconds`.

    Stage, percent and remaining minutes come first, because a run's page truncates long
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
    context: dg.AssetExecutionContext, datasets: Datasets, names: tuple[str, ...]
) -> list[Path]:
    """Return the folders of the named positions, or of all positions.

    Raises UserError if any are missing or failed a blocking check.
    """
    found = datasets.find_positions(names, materialized_dumps(context.instance))
    partitions = [path.name for path in found]
    require_no_failed_check(context.instance, dg.AssetKey("positions"), partitions)
    return found


def find_input(
    context: dg.AssetExecutionContext, datasets: Datasets, key: dg.AssetKey, name: str
) -> Path:
    """Return the folder called `name`; if `name` is "", the one that `find_folder` returns.

    Raises UserError if the folder is missing, or if `name` is "" and a blocking check failed.
    """
    kind = key.to_user_string()
    if name:
        if not (folder := datasets.folder(f"{kind}s", name)).is_dir():
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
    """Return the folder that this run, or the run it retries, materialized; else the newest.

    The folder is read from the metadata entry `name` of the materialization.
    """
    found = _list_materializations(instance, key)
    runs = (run.run_id, run.parent_run_id, run.root_run_id)
    own = [facts for run_id, facts in found if run_id in runs]
    if chosen := own or [facts for _, facts in found]:
        if name not in chosen[0]:
            folder = chosen[0]["path"].value
            raise UserError(
                f"{folder} was made on the command line, so its materialization has no metadata "
                f"{name!r}: materialize it in Dagster"
            )
        return Path(str(chosen[0][name].value))
    asset = key.to_user_string()
    raise UserError(
        f"no {asset} has been materialized: materialize one, or name one in datasets/{asset}s"
    )


def find_own_set(instance: dg.DagsterInstance, network: Path) -> Path | None:
    """Return the training set of a checkpoint; None if it is unknown or has been deleted."""
    for _, facts in _list_materializations(instance, dg.AssetKey("checkpoint")):
        if facts["path"].value == str(network) and TRAINED_ON in facts:
            own = Path(str(facts[TRAINED_ON].value))
            return own if own.is_dir() else None
    return None


def _list_materializations(
    instance: dg.DagsterInstance, key: dg.AssetKey
) -> list[tuple[str, Mapping[str, Any]]]:
    """Return (run id, metadata) of each materialization, newest first.

    Those reported manually in the UI have no path and are left out.
    """
    records = instance.fetch_materializations(key, limit=1000).records
    found = [(it.run_id, it.asset_materialization) for it in records]
    return [(run, it.metadata) for run, it in found if it is not None and "path" in it.metadata]


def require_no_failed_check(
    instance: dg.DagsterInstance, asset: dg.AssetKey, partitions: Collection[str | None] = (None,)
) -> None:
    """Raise UserError if the last result of a blocking check of these partitions is a failure."""
    name = asset.to_user_string()
    history = instance.event_log_storage.get_asset_check_execution_history
    for check in BLOCKING.get(name, ()):
        records = history(dg.AssetCheckKey(asset, check), limit=MAX_EVALUATIONS)
        last = {
            record.partition: record.status.value
            for record in reversed(records)
            if record.status.value != "PLANNED"
        }
        for partition in partitions:
            if last.get(partition) == "FAILED":
                subject = f"{name} of {partition}" if partition else f"the {name}"
                raise UserError(
                    f"{subject} failed the check {check} last time: materialize it again, or "
                    f"execute the check again"
                )


def materialized_dumps(instance: dg.DagsterInstance) -> set[str]:
    """Return the dumps whose positions Dagster lists as materialized."""
    found = instance.get_materialized_partitions(dg.AssetKey("positions"))
    return found & set(instance.get_dynamic_partitions(DUMPS))
