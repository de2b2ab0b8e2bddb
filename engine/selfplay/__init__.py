"""Self-play: many games at a time, with the search's result at each move."""
