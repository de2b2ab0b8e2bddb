"""Train, fine-tune and export checkpoints."""
