"""A batch of packed rows to what a network reads, and its answer back to our labels."""
