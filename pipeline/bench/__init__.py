"""The benchmarks of `fianchetto bench`: each is a module whose function `measure` returns figures by name."""
