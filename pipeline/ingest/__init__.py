"""Turn dumps into a dataset: chunks, filters, shards, manifest and data card."""
