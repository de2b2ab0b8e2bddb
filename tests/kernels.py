"""Compile all modules and kernels before the tests, while linters run: `python -m tests.kernels`.

Otherwise, processes that start together would each compile all of them.
"""

import compileall

from pipeline.cli.commands.warmup import compile_kernels
from tests.conftest import REPOSITORY

if __name__ == "__main__":
    for room in ("engine", "model", "pipeline", "fianchetto", "tests"):
        compileall.compile_dir(REPOSITORY / room, quiet=1)
    compile_kernels()
