"""What a checkpoint is worth on unseen games: figures, tables, pictures."""
