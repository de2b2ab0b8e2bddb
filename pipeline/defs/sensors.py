"""The sensor that watches `datasets/dumps/`; off until a person switches it on."""

import time
from collections.abc import Iterable
from pathlib import Path

import dagster as dg

from pipeline.defs.assets import dumps
from pipeline.defs.jobs import build_positions
from pipeline.defs.resources import Datasets

SETTLED = 30.0
"""Seconds that a file must not have changed: one that is still being copied is left for a later look."""


@dg.sensor(job=build_positions, minimum_interval_seconds=30)
def new_dumps(context: dg.SensorEvaluationContext, datasets: Datasets) -> dg.SensorResult | dg.SkipReason:
    """Register each new file in `datasets/dumps/` as a partition and turn it into positions."""
    assert dumps.name is not None
    known = set(context.instance.get_dynamic_partitions(dumps.name))
    limit = time.time() - SETTLED
    found = {key: files for key, files in datasets.dumps().items() if key not in known}
    new = [key for key, files in found.items() if settled(files, limit)]
    if not new:
        return dg.SkipReason(f"no new dump in {datasets.path / 'dumps'} ({len(found)} still being written)")
    return dg.SensorResult(
        run_requests=[dg.RunRequest(run_key=key, partition_key=key) for key in new],
        dynamic_partitions_requests=[dumps.build_add_request(new)],
    )


def settled(files: Iterable[Path], limit: float) -> bool:
    """Tell whether files were last written before the time `limit`; one that has gone meanwhile was not."""
    try:
        return all(file.stat().st_mtime < limit for file in files)
    except FileNotFoundError:
        return False
