"""A batch of packed rows to a network's inputs, and its policy back to our labels."""
