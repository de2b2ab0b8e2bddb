"""Networks: presets, losses, the trainer, checkpoints, and a checkpoint as an evaluator."""
