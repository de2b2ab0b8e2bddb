"""Positions as the 77 stored planes and as other systems' views; moves as labels."""
