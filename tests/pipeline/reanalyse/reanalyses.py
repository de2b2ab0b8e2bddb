"""Reanalyses for tests: a dataset, a small network, a process to kill, and what must be the same however the work was done."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from pydantic_core import to_json

from engine.search import SearchConfig
from pipeline.ingest.chunk import IngestConfig
from pipeline.ingest.job import ingest
from pipeline.reanalyse.config import ReanalyseConfig
from tests import forked
from tests.conftest import REPOSITORY
from tests.model.test_checkpoint import make
from tests.pipeline import datasets

SMALL: dict[str, Any] = {
    "count": 40,
    "width": 4,
    "moved": 0.5,
    "moved_plies": 3,
    "moved_temperature": 1.5,
    "interior": 3,
    "cache_mib": 1,
    "device": "cpu",
    "amp": "off",
    "search": SearchConfig(
        algorithm="gumbel",
        simulations=12,
        max_considered_actions=4,
        gumbel_scale=0.0,
        value_scale=1.0,
        rescale_values=False,
    ),
}

RUN = """
import json, os, resource, signal, sys
from pathlib import Path
from engine.search import SearchConfig
from pipeline.errors import UserError
from pipeline.reanalyse.config import ReanalyseConfig
from pipeline.reanalyse.job import reanalyse

settings, checkpoint, positions, out = json.loads(sys.argv[1]), *map(Path, sys.argv[2:5])
limit, kill_after = map(int, sys.argv[5:])
os.fsync = lambda descriptor: None
if limit:
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
settings["phases"] = tuple(settings["phases"])
config = ReanalyseConfig(**{**settings, "search": SearchConfig(**settings["search"])})
import torch

def progress(tick):
    if tick.unit == "positions" and 0 < kill_after <= tick.done:
        os.kill(os.getpid(), signal.SIGKILL)

print("begun", flush=True)
try:
    reanalyse(checkpoint, [positions], config, out, workers=1, progress=progress)
except UserError as error:
    print(error)
    sys.exit(2)
"""


def small(**changes: object) -> ReanalyseConfig:
    """Give settings that a test can search with."""
    return ReanalyseConfig(**{**SMALL, **changes})


def prepare(folder: Path, games: int = 60) -> tuple[Path, Path]:
    """Make a checkpoint and a dataset of random games: their folders."""
    make(folder / "checkpoint")
    dump = datasets.dump(folder / "games.pgn", games)
    ingest([str(dump)], folder / "positions", IngestConfig(val_share=0.1, test_share=0.1), workers=1)
    return folder / "checkpoint", folder / "positions"


def start(
    config: ReanalyseConfig, made: tuple[Path, Path], out: Path, limit: int = 0, kill_after: int = 0
) -> "subprocess.Popen[str]":
    """Begin a reanalysis in a process of its own, and come back when it is about to draw positions.

    No file may be longer than `limit` bytes; the process kills itself when `kill_after` positions are searched, earlier
    ones included; 0 for neither.
    """
    words = [to_json(config).decode(), *map(str, made), str(out), str(limit), str(kill_after)]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    process = forked.Popen(
        [sys.executable, "-c", RUN, *words], cwd=REPOSITORY, stdout=subprocess.PIPE, text=True, env=environment
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    return process


def told(out: Path) -> dict[str, Any]:
    """Give the hash of every file, and of the manifest all but its timing."""
    files: dict[str, Any] = datasets.content(out)
    manifest = datasets.manifest(out)
    manifest["searches"].pop("timing")
    return {**files, "manifest.json": manifest}


def searches(out: Path) -> list[dict[str, Any]]:
    """Read searches.jsonl."""
    return [json.loads(line) for line in (out / "searches.jsonl").read_text().splitlines()]
