"""Games of self-play: many at once, with what the search found at each move."""
