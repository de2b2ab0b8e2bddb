"""All definitions of this folder as one: what `pipeline.definitions` shows to Dagster and `pipeline.defs.run` runs."""

from collections.abc import Callable
from pathlib import Path

import dagster as dg

from pipeline.defs.resources import Compute, Datasets


def lazily() -> Callable[..., dg.Definitions]:
    """Return `load` in the form that Dagster looks for in a module, and calls when it loads the code location."""
    return dg.definitions(load)


def load() -> dg.Definitions:
    """Return everything in `pipeline/defs/`; a run is one process already, so its steps run in it one after another."""
    found = dg.load_from_defs_folder(path_within_project=Path(__file__).parent)
    resources = {"datasets": Datasets(), "compute": Compute()}
    return dg.Definitions.merge(found, dg.Definitions(executor=dg.in_process_executor, resources=resources))
