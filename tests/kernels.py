"""Compile what the suite will run, once, while the linters have the other core: `python -m
tests.kernels`.

Processes that start together with nothing compiled would each compile all of it: the kernels, and
Python's modules where the environment forbids to keep what an import compiles.
"""

import compileall

from pipeline.cli.commands.warmup import compile_kernels
from tests.conftest import REPOSITORY

if __name__ == "__main__":
    for room in ("engine", "model", "pipeline", "fianchetto", "tests"):
        compileall.compile_dir(REPOSITORY / room, quiet=1)
    compile_kernels()
