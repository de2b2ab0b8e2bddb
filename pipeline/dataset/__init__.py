"""Datasets: shards, batches, training sets, mixtures, and what is counted over them."""
