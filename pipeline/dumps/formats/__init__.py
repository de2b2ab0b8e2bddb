"""Convert inputs other than PGN to a stream of PGN text for a single reader (README.md)."""
