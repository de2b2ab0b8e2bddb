"""Games of self-play: many at once, with the search's result at each move."""
