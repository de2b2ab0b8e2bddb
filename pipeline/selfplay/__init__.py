"""Self-play as a data job: let a checkpoint play itself, and turn the games into a dataset."""
