"""Compile all modules and kernels before the tests: `python -m tests.kernels`.

Otherwise, each of the test processes that start together would compile all of them.
"""

import compileall

from pipeline.cli.commands.warmup import compile_kernels
from tests.conftest import REPOSITORY

if __name__ == "__main__":
    for room in ("engine", "model", "pipeline", "fianchetto", "tests"):
        compileall.compile_dir(REPOSITORY / room, quiet=1)
    compile_kernels()
