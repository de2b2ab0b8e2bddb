"""A training run: one step, the loss, the loop, saves."""
