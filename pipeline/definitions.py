"""Everything that Dagster shows, loaded from `pipeline/defs/`."""

import dagster as dg


@dg.definitions
def defs() -> dg.Definitions:
    """Return what lies in `pipeline/defs/`."""
    from pipeline.defs.loading import load

    return load()
