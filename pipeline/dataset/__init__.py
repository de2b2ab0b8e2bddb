"""Datasets: shards, batches, training sets, mixtures, and counts of rows and games."""
