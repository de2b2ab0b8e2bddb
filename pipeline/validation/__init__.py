"""Check datasets: hashes, sampled rows, audits."""
