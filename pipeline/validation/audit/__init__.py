"""Audits of datasets: copies, overlap of splits, distributions, in bounded memory."""
