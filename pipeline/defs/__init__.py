"""The thin Dagster layer: assets, checks, jobs and sensors over library calls."""
