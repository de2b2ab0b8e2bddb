"""Train a network to play like one person, and report on it."""
