"""Dagster's entry point. Only `pipeline/defs/`, which has the definitions, imports Dagster."""

from pipeline.defs.resources import load_lazily

defs = load_lazily()
