"""Ingests in processes of their own, which can be killed by the dozen: `python -m
tests.pipeline.ingest.begun REQUEST`."""

import json
import os
import signal
import sys
import time
import traceback
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psutil

from engine.progress import Tick
from pipeline.cli.commands.base import Interrupt
from pipeline.errors import Stopped, UserError
from pipeline.ingest.chunk import IngestConfig
from pipeline.ingest.job import ingest
from tests import forked
from tests.conftest import REPOSITORY
from tests.waiting import LONG

FINISHED, STOPPED, REFUSED, BROKEN = 0, 1, 2, 3
"""How one ends that is not killed."""


def begin(
    dump: Path,
    out: Path,
    config: IngestConfig,
    workers: int = 1,
    *,
    hold: Path | None = None,
    kill_at: int = 0,
) -> forked.Popen:
    """Begin an ingest and give its process.

    It waits after its first chunk until it is stopped or the file `hold` is gone, and kills itself
    before its file operation number `kill_at`.
    """
    request = {
        "dump": str(dump),
        "out": str(out),
        "config": asdict(config),
        "workers": workers,
        "hold": str(hold or ""),
    }
    command = [sys.executable, "-m", "tests.pipeline.ingest.begun", json.dumps(request)]
    variables = {forked.KILL_AT: str(kill_at)} if kill_at else {}
    return forked.Popen(command, cwd=REPOSITORY, env=os.environ | variables)


def kill(process: forked.Popen) -> bool:
    """Kill an ingest; give whether that is what ended it. Its workers are gone when this comes
    back."""
    try:
        below = psutil.Process(process.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        below = []
    # it stays a zombie until it is waited for, so the number is its own
    os.kill(process.pid, signal.SIGKILL)
    ended = process.wait()
    _, alive = psutil.wait_procs(below, timeout=LONG)
    assert alive == [], "a worker has outlived its driver"
    return ended == -signal.SIGKILL


def main(request: dict[str, Any]) -> int:
    """Ingest as the command does, with its answer to SIGTERM."""
    config, stop = IngestConfig(**request["config"]), Interrupt()

    def wait_while_held(tick: Tick) -> None:
        while request["hold"] and Path(request["hold"]).exists() and not stop():
            time.sleep(0.01)

    try:
        ingest(
            [request["dump"]],
            Path(request["out"]),
            config,
            workers=request["workers"],
            stop=stop,
            progress=wait_while_held,
        )
    except Stopped:
        return STOPPED
    except UserError as error:
        sys.stderr.write(f"{error}\n")
        return REFUSED
    except Exception:  # noqa: BLE001 - said, and carried by the exit status
        traceback.print_exc()
        return BROKEN
    return FINISHED


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
