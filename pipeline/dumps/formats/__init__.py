"""Inputs beside PGN, each turned into PGN text as it streams by, so that one reader makes the rows
of all (README.md).
"""
