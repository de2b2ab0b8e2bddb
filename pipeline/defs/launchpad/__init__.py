"""Launchpad forms, generated from the command line's dataclasses."""
