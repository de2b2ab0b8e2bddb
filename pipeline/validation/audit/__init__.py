"""Audits of datasets: copies, overlap of splits, distributions and drift, in bounded memory."""
