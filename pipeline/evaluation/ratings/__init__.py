"""Accuracy of networks that are conditioned on ratings."""
