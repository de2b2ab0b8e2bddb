"""Train a network: steps, losses, the loop, and saves."""
