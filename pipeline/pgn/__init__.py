"""Parse PGN text into rows, in compiled code: tags, SAN, replay."""
