"""Measure checkpoints on the moves of games, and write reports."""
