"""Measure a checkpoint on unseen games, and write the report."""
