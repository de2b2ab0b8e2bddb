"""Load the definitions of this folder, for Dagster and for `pipeline.defs.run`."""

from collections.abc import Callable
from pathlib import Path

import dagster as dg

from pipeline.defs.launchpad.forms import keep_order
from pipeline.defs.resources import Compute, Datasets


def load_lazily() -> Callable[..., dg.Definitions]:
    """Return `load` in the form that Dagster finds in a module and calls itself."""
    return dg.definitions(load)


def load() -> dg.Definitions:
    """Return the definitions in `pipeline/defs/`; the steps of a run share its process."""
    keep_order()
    found = dg.load_from_defs_folder(path_within_project=Path(__file__).parent)
    # Dagster's default would pickle the results of ops into a folder that a run may name.
    resources = {"datasets": Datasets(), "compute": Compute(), "io_manager": dg.mem_io_manager}
    return dg.Definitions.merge(
        found, dg.Definitions(executor=dg.in_process_executor, resources=resources)
    )
