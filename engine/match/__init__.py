"""Matches in opening pairs between evaluators, searches and UCI engines, and what a result says."""
