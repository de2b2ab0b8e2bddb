"""Datasets into a checkpoint: training, fine-tuning, export."""
