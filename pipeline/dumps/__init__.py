"""Fetch and decompress dumps, convert other formats to PGN, and cut the text into chunks."""
