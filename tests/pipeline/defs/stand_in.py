"""Functions that tests run in a child process."""

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


def count_to_three(given: object, *, progress: Progress) -> Mapping[str, Any]:
    """Print, log, compile a kernel, report progress, and return what was given."""
    import numba

    sys.stdout.write("a stray print\n")
    logging.getLogger("model.training.loop").info("a step takes long")
    numba.njit(lambda x: x + 1)(1)
    for done in range(1, 4):
        progress(Tick(done, 3, "things", {"loss": 1 / done}, "counting"))
    return {"given": given}


def fail(how: str) -> Mapping[str, Any]:
    if how == "user error":
        raise UserError("the folder is taken", code="taken")
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    raise ZeroDivisionError("a bug")


def work(out: Path, stubborn: bool = False, *, progress: Progress, stop: Stop) -> Mapping[str, Any]:
    """Start a worker process, and write growing numbers until stopped; never stop if stubborn."""
    worker = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    (out / "pids").write_text(f"{os.getpid()} {worker.pid}")
    number = 0
    while not stop() or stubborn:
        number += 1
        (out / "state.tmp").write_text(str(number))
        (out / "state.tmp").replace(out / "state")
        progress(Tick(number, None, "steps", {}))
        time.sleep(0.02)
    (out / "saved").write_text(str(number))
    return {}


def sleep(*, progress: Progress) -> Mapping[str, Any]:
    """Sleep without polling `stop`."""
    progress(Tick(1, None, "naps", {}))
    time.sleep(3600)
    return {}
