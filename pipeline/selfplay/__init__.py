"""Self-play as a data job: a checkpoint plays itself, and its games become a dataset."""
