"""Matches between evaluators, searches and UCI engines, and statistics of their results."""
