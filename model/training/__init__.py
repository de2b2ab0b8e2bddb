"""A training run: targets, losses, optimizers, the loop, and how a run is continued."""
