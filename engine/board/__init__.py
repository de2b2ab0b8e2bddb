"""Positions as bitboards: legal moves, the ends of games, random numbers."""
