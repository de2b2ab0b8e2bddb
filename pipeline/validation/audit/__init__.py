"""What is in datasets, and what a test of them is worth: copies, overlap, distributions, drift. In bounded memory."""
