"""Matches by the words of a command line, and their files."""
