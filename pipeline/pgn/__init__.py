"""PGN text to rows, compiled: tags, SAN, replay."""
