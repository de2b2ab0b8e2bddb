"""All definitions of this folder as one: what `pipeline.definitions` shows to Dagster and `pipeline.defs.run` runs."""

import warnings
from collections.abc import Callable
from pathlib import Path

import dagster as dg
from dagster_shared.record import copy

from pipeline.defs.resources import Compute, Datasets


def lazily() -> Callable[..., dg.Definitions]:
    """Return `load` in the form that Dagster looks for in a module, and calls when it loads the code location."""
    return dg.definitions(load)


def load() -> dg.Definitions:
    """Return everything in `pipeline/defs/`; a run is one process already, so its steps run in it one after another."""
    found = dg.load_from_defs_folder(path_within_project=Path(__file__).parent)
    each = list(
        {id(asset): asset for asset in found.assets or ()}.values()
    )  # modules that import an asset name it again
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dg.BetaWarning)
        found = copy(found, assets=dg.with_source_code_references(each))  # an asset's page links to its code
    # In memory: Dagster's default writes what an op returns as a pickle into a folder that a run's configuration names.
    resources = {"datasets": Datasets(), "compute": Compute(), "io_manager": dg.mem_io_manager}
    return dg.Definitions.merge(found, dg.Definitions(executor=dg.in_process_executor, resources=resources))
