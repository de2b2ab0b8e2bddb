"""Check datasets: hashes, rows encoded again, audits."""
