"""Datasets into a checkpoint: training, fine-tuning, Ray Train."""
