"""Convert inputs other than PGN to a stream of PGN text, so that one reader serves all (README.md)."""
