"""Measure a checkpoint on unseen games: figures, tables, pictures."""
