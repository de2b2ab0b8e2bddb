"""Fine-tune a checkpoint in generations of search, training, matches and measurement."""
