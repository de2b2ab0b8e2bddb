"""Dagster's entry point: the definitions of `pipeline/defs/`, which alone imports Dagster."""

from pipeline.defs.resources import load_lazily

defs = load_lazily()
