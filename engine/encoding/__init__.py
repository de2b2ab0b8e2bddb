"""Positions as the 77 stored planes or the planes of other systems; moves as labels."""
