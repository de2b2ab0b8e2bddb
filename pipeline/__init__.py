"""From a PGN dump to shards, batches, a trained network and its report."""
