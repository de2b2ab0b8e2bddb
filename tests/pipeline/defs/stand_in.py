"""A child process with tasks for tests beside the real ones: `python -m tests.pipeline.defs.stand_in`."""

import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engine.errors import UserError
from engine.progress import Progress, Stop, Tick
from pipeline.defs.child import main

Arguments = Mapping[str, Any]


def count(arguments: Arguments, progress: Progress, stop: Stop) -> Mapping[str, Any]:
    sys.stdout.write("a stray print\n")
    for done in range(1, 4):
        progress(Tick(done, 3, "things", {"loss": 1 / done}))
    return {"counted": arguments["upto"]}


def refuse(arguments: Arguments, progress: Progress, stop: Stop) -> Mapping[str, Any]:
    raise UserError("that cannot be, do this")


def crash(arguments: Arguments, progress: Progress, stop: Stop) -> Mapping[str, Any]:
    raise ZeroDivisionError("a bug")


def vanish(arguments: Arguments, progress: Progress, stop: Stop) -> Mapping[str, Any]:
    os.kill(os.getpid(), signal.SIGKILL)
    return {}


def work(arguments: Arguments, progress: Progress, stop: Stop) -> Mapping[str, Any]:
    """Write a number under a temporary name and rename it, until stopped; with a worker process of its own."""
    out = Path(arguments["out"])
    worker = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    (out / "pids").write_text(f"{os.getpid()} {worker.pid}")
    number = 0
    while not stop() or arguments.get("stubborn"):
        number += 1
        (out / "state.tmp").write_text(str(number))
        (out / "state.tmp").replace(out / "state")
        progress(Tick(number, None, "steps", {}))
        time.sleep(0.02)
    (out / "saved").write_text(str(number))
    return {}


def sleep(arguments: Arguments, progress: Progress, stop: Stop) -> Mapping[str, Any]:
    """Ask nothing, for long."""
    progress(Tick(1, None, "naps", {}))
    time.sleep(600)
    return {}


def train(arguments: Arguments, progress: Progress, stop: Stop) -> Mapping[str, Any]:
    """Train as the real task does, with slow parts from some point on."""
    from pipeline.defs.tasks import train as real
    from tests.pipeline.slow_training import slow_from

    slow_from(Path(arguments["folder"]), arguments["at"])
    return real(arguments, progress, stop)


def tell(arguments: Arguments, progress: Progress, stop: Stop) -> Mapping[str, Any]:
    """Log a line, and one that is not this project's."""
    logging.getLogger("model.training.trainer").info("a step takes long")
    logging.getLogger("elsewhere").warning("of no interest")
    return {}


if __name__ == "__main__":
    known = (count, refuse, crash, vanish, work, sleep, train, tell)
    main({task.__name__: task for task in known}, asking=("work", "train"))
