"""A command that waits in the middle of its work for a signal: `python -m
tests.pipeline.held_command FILE FUNCTION WORDS...`.

When it first calls FUNCTION, `module:name`, it makes FILE and waits; so a test need not guess how
long the work takes.
"""

import runpy
import sys
import time
from importlib import import_module
from pathlib import Path
from typing import Any

from pipeline.cli.commands.base import Interrupt


def hold_in(function: str, file: Path) -> None:
    """Have a function of a module wait for SIGTERM or Ctrl-C before it does its work."""
    module, _, name = function.partition(":")
    real = getattr(import_module(module), name)

    def held(*arguments: Any, **options: Any) -> Any:
        file.touch()
        while not Interrupt.received_signal:
            time.sleep(0.01)
        return real(*arguments, **options)

    setattr(import_module(module), name, held)


if __name__ == "__main__":
    hold_in(sys.argv[2], Path(sys.argv[1]))
    sys.argv = ["fianchetto", *sys.argv[3:]]
    runpy.run_module("pipeline", run_name="__main__", alter_sys=True)
