"""Progress of an asset as observations, which its Plots view draws while the run continues."""

import time
from typing import Any

import dagster as dg

from engine.progress import Progress, Tick


def log_asset_progress(context: dg.AssetExecutionContext) -> Progress:
    """Return a progress callback that logs observations of the asset that the step makes."""
    partition = context.partition_key if context.assets_def.partitions_def is not None else None
    return log_progress(context, context.asset_key, partition)


def log_progress(
    context: dg.AssetExecutionContext | dg.OpExecutionContext,
    asset: dg.AssetKey,
    partition: str | None,
) -> Progress:
    """Return a progress callback that logs observations of an asset at intervals of `interval`."""
    began = due = started = time.monotonic()
    first: Tick | None = None

    def progress(tick: Tick) -> None:
        nonlocal due, first, started
        now = time.monotonic()
        is_new = (
            first is None
            or (first.stage, first.unit) != (tick.stage, tick.unit)
            or tick.done < first.done
        )
        if first is None or is_new:
            first, started = tick, now
        if now >= due or (is_new and tick.stage):  # the name of a new stage is logged at once
            due = now + interval(now - began)
            values = describe_tick(tick, tick.done - first.done, now - started)
            seen = dg.AssetObservation(asset_key=asset, partition=partition, metadata=values)
            context.log_event(seen)

    return progress


def interval(elapsed: float) -> float:
    """Return the seconds until the next observation: a tenth of the elapsed time, 2 to 60.

    That is about 100 observations in the first hour and 60 in each later one: a curve, and a log
    that can be read.
    """
    return min(60.0, max(2.0, elapsed / 10))


def describe_tick(tick: Tick, gained: int, seconds: float) -> dict[str, Any]:
    """Return the metadata of an observation; `gained` is how much was done in the last `seconds`.

    Stage, percent and remaining minutes come first, because a run's page cuts long observations
    off.
    """
    values: dict[str, Any] = {"stage": tick.stage} if tick.stage else {}
    if tick.total:
        values["percent"] = round(100 * tick.done / tick.total, 1)
        if gained > 0:
            values["minutes_left"] = round(seconds / 60 * (tick.total - tick.done) / gained, 1)
    values |= {
        name: value if isinstance(value, int) else float(f"{value:.4g}")
        for name, value in tick.values.items()
    }
    return values | {{"B": "bytes", "s": "seconds"}.get(tick.unit, tick.unit): int(tick.done)}
