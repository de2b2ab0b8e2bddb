"""Everything that Dagster shows, loaded from `pipeline/defs/`."""

from pathlib import Path

import dagster as dg


@dg.definitions
def defs() -> dg.Definitions:
    """Load `pipeline/defs/`; a run is one process already, so its steps run in it one after another."""
    from pipeline.defs.resources import Compute, Datasets

    found = dg.load_from_defs_folder(path_within_project=Path(__file__).parent)
    resources = {"datasets": Datasets(), "compute": Compute()}
    return dg.Definitions.merge(found, dg.Definitions(executor=dg.in_process_executor, resources=resources))
