"""Positions as bitboards: legal moves, endings of games, random numbers."""
