"""Self-play games, many at a time, with the search's result at each move."""
