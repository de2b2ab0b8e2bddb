"""Benchmarks: each is a module whose function `measure` returns figures by name."""
