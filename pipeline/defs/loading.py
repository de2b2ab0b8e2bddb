"""All definitions of this folder: what `pipeline.definitions` gives to Dagster and
`pipeline.defs.run` runs.
"""

from collections.abc import Callable
from pathlib import Path

import dagster as dg

from pipeline.defs.resources import Compute, Datasets


def load_lazily() -> Callable[..., dg.Definitions]:
    """Return `load` as the callable that Dagster finds in a module and calls when it loads the code
    location.
    """
    return dg.definitions(load)


def load() -> dg.Definitions:
    """Return the definitions in `pipeline/defs/`; a run is a process already, so its steps run in
    it one after another.
    """
    found = dg.load_from_defs_folder(path_within_project=Path(__file__).parent)
    # In memory: Dagster's default writes what an op returns as a pickle into a folder that a run's
    # configuration names.
    resources = {"datasets": Datasets(), "compute": Compute(), "io_manager": dg.mem_io_manager}
    return dg.Definitions.merge(
        found, dg.Definitions(executor=dg.in_process_executor, resources=resources)
    )
