"""The embedded dump: games of a simple player, the same on every machine."""
