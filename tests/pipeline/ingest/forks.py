"""Ingests that can be killed by the dozen: a process that has imported all, and forks itself for each.

`python -m tests.pipeline.ingest.forks` is the server: a request a line on standard input, an answer a line on standard output.
A fork costs milliseconds where a start costs seconds. The server has no threads: it has written Parquet, never read it.
"""

import json
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psutil

from tests.conftest import REPOSITORY

FINISHED, STOPPED, REFUSED, BROKEN = 0, 1, 2, 3
"""How a child ends that is not killed."""


class Forks:
    """The tests' side of the server."""

    def __init__(self) -> None:
        self.server = subprocess.Popen(
            [sys.executable, "-m", "tests.pipeline.ingest.forks"],
            cwd=REPOSITORY,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._line() == "ready"

    def _line(self) -> str:
        assert self.server.stdout is not None
        return self.server.stdout.readline().strip()

    def _ask(self, request: dict[str, Any]) -> str:
        assert self.server.stdin is not None
        self.server.stdin.write(json.dumps(request) + "\n")
        self.server.stdin.flush()
        return self._line()

    def start(self, dump: Path, out: Path, config: Any, workers: int = 1) -> int:
        """Begin an ingest and give its process."""
        return int(
            self._ask({"do": "start", "dump": str(dump), "out": str(out), "config": asdict(config), "workers": workers})
        )

    def wait(self, pid: int) -> int:
        """Wait for an ingest: give how it ended, negative for a signal."""
        return int(self._ask({"do": "wait", "pid": pid}))

    def kill(self, pid: int) -> bool:
        """Kill an ingest; give whether that is what ended it. Its workers are gone when this comes back."""
        try:
            below = psutil.Process(pid).children(recursive=True)
        except psutil.NoSuchProcess:
            below = []
        os.kill(pid, signal.SIGKILL)  # it stays a zombie until the server waits for it, so the number is its own
        ended = self.wait(pid)
        _, alive = psutil.wait_procs(below, timeout=60)
        assert alive == [], "a worker has outlived its driver"
        return ended == -signal.SIGKILL


@contextmanager
def forks() -> Iterator[Forks]:
    """Hold a server."""
    served = Forks()
    try:
        yield served
    finally:
        served.server.communicate()
        assert served.server.returncode == 0


def _child(request: dict[str, Any]) -> int:
    """Ingest as the command does, with its answer to SIGTERM."""
    from pipeline.cli.commands.base import Interrupt
    from pipeline.errors import Stopped, UserError
    from pipeline.ingest.chunk import IngestConfig
    from pipeline.ingest.job import ingest

    config = IngestConfig(**request["config"])
    try:
        ingest([request["dump"]], Path(request["out"]), config, workers=request["workers"], stop=Interrupt())
    except Stopped:
        return STOPPED
    except UserError as error:
        sys.stderr.write(f"{error}\n")
        return REFUSED
    except Exception:  # noqa: BLE001 - said, and carried by the exit status
        traceback.print_exc()
        return BROKEN
    return FINISHED


def _say(answer: object) -> None:
    """Answer the tests."""
    sys.stdout.write(f"{answer}\n")
    sys.stdout.flush()


def main() -> None:
    """Serve until standard input ends."""
    import pipeline.ingest.job  # noqa: F401 - so that children need not import it
    from pipeline.bench.scale_job import load

    load(0)  # so that children need not load the kernels and pyarrow's writers
    _say("ready")
    for line in sys.stdin:
        request = json.loads(line)
        if request["do"] == "wait":
            _, status = os.waitpid(request["pid"], 0)
            _say(os.waitstatus_to_exitcode(status))
        elif pid := os.fork():
            _say(pid)
        else:
            os._exit(_child(request))


if __name__ == "__main__":
    main()
