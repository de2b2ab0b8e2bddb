"""Dagster's entry point: the definitions of `pipeline/defs/`."""

import dagster as dg


@dg.definitions
def defs() -> dg.Definitions:
    """Return the definitions of `pipeline/defs/`."""
    from pipeline.defs.loading import load

    return load()
