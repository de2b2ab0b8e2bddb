"""Whether a dataset is what it says: hashes, rows encoded again, audits."""
