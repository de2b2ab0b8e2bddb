"""Launchpad forms, made from the command line's own dataclasses."""
