"""Positions as bitboards: legal moves, the rules' endings, random numbers."""
