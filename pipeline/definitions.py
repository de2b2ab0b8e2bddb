"""Dagster's entry point. The definitions are in `pipeline/defs/`; no other folder imports Dagster."""

from pipeline.defs.resources import load_lazily

defs = load_lazily()
