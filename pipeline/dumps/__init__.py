"""Dumps: fetched, decompressed, cut into chunks of whole games; other formats turned into PGN."""
