"""Matches between players named on the command line, and their files."""
