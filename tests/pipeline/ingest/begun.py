"""Ingests in processes of their own, which can be killed by the dozen: `python -m tests.pipeline.ingest.begun REQUEST`."""

import json
import os
import signal
import sys
import traceback
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psutil

from pipeline.cli.commands.base import Interrupt
from pipeline.errors import Stopped, UserError
from pipeline.ingest.chunk import IngestConfig
from pipeline.ingest.job import ingest
from tests import forked
from tests.conftest import REPOSITORY

FINISHED, STOPPED, REFUSED, BROKEN = 0, 1, 2, 3
"""How one ends that is not killed."""


def begin(dump: Path, out: Path, config: IngestConfig, workers: int = 1) -> forked.Popen:
    """Begin an ingest and give its process."""
    request = json.dumps({"dump": str(dump), "out": str(out), "config": asdict(config), "workers": workers})
    return forked.Popen([sys.executable, "-m", "tests.pipeline.ingest.begun", request], cwd=REPOSITORY)


def kill(process: forked.Popen) -> bool:
    """Kill an ingest; give whether that is what ended it. Its workers are gone when this comes back."""
    try:
        below = psutil.Process(process.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        below = []
    os.kill(process.pid, signal.SIGKILL)  # it stays a zombie until it is waited for, so the number is its own
    ended = process.wait()
    _, alive = psutil.wait_procs(below, timeout=60)
    assert alive == [], "a worker has outlived its driver"
    return ended == -signal.SIGKILL


def main(request: dict[str, Any]) -> int:
    """Ingest as the command does, with its answer to SIGTERM."""
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


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
