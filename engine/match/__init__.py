"""Matches in opening pairs between evaluators, searches and UCI engines, and statistics of their
results.
"""
