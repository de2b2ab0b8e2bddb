"""Games of self-play: many at once, with what the search thought of each move."""
