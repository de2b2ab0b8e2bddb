"""`fianchetto train` with a step that lasts until the run is told to stop: `python -m
tests.pipeline.slow_training FOLDER AT WORDS...`.

The file FOLDER/slow appears when the step waits, in its microbatch AT of all.
"""

import itertools
import sys
import time
from pathlib import Path
from typing import Any

from engine.progress import Stop
from model.training import step as stepping


def slow_from(folder: Path, at: int, stop: Stop) -> None:
    """Let every call of the losses wait until `stop`, from the one with number `at` on."""
    real, calls = stepping.row_losses, itertools.count()

    def slow(*arguments: Any) -> Any:
        if next(calls) >= at:
            (folder / "slow").touch()
            while not stop():
                time.sleep(0.01)
        return real(*arguments)

    stepping.row_losses = slow


if __name__ == "__main__":
    from pipeline.cli.commands.base import Interrupt
    from pipeline.cli.main import main

    slow_from(Path(sys.argv[1]), int(sys.argv[2]), lambda: Interrupt.received_signal != 0)
    sys.argv = ["fianchetto", *sys.argv[3:]]
    main()
