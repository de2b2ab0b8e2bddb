"""Generations for tests: small settings, a process to kill, and what must be the same however the
work was done."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic_core import to_json

from engine.search import SearchConfig
from pipeline.ingest.chunk import IngestConfig
from pipeline.ingest.job import ingest
from pipeline.selfplay.config import ExploreConfig
from tests import forked
from tests.conftest import REPOSITORY
from tests.model.test_checkpoint import make
from tests.pipeline import datasets

SMALL: dict[str, Any] = {
    "games": 24,
    "explorer": "hand-written",
    "width": 8,
    "most_plies": 50,
    "resign": 0.6,
    "search": SearchConfig(algorithm="gumbel", simulations=6, max_considered_actions=4),
}
SEARCHED: dict[str, Any] = {
    "count": 40,
    "explorer": "network",
    "source": "people",
    "width": 4,
    "device": "cpu",
    "search": SearchConfig(
        algorithm="gumbel",
        simulations=12,
        max_considered_actions=4,
        value_scale=1.0,
        rescale_values=False,
    ),
}

RUN = """
import json, os, signal, sys
from pathlib import Path
from engine.errors import UserError
from engine.search import SearchConfig
from pipeline.selfplay.config import ExploreConfig
from pipeline.selfplay.job import explore

settings, out, engine = json.loads(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
workers, kill_after = map(int, sys.argv[4:6])
checkpoint, *positions = [*map(Path, sys.argv[6:]), None][: len(sys.argv) - 6 or 1]
config = ExploreConfig(**{**settings, "search": SearchConfig(**settings["search"])})

def progress(tick):
    if tick.unit in ("games", "positions") and 0 < kill_after <= tick.done:
        os.kill(os.getpid(), signal.SIGKILL)

if checkpoint is not None:
    import torch
print("begun", flush=True)
try:
    explore(
        checkpoint, config, out, datasets=positions, engine=engine, workers=workers,
        progress=progress,
    )
except UserError as error:
    print(error)
    sys.exit(2)
"""


def small(**changes: object) -> ExploreConfig:
    """Give settings of games that a test can play."""
    return ExploreConfig(**{**SMALL, **changes})


def searched(**changes: object) -> ExploreConfig:
    """Give settings with which a test can search positions."""
    return ExploreConfig(**{**SEARCHED, **changes})


def prepare(folder: Path, games: int = 60) -> tuple[Path, Path]:
    """Make a checkpoint and a dataset of random games: their folders."""
    make(folder / "checkpoint")
    dump = datasets.dump(folder / "games.pgn", games)
    ingest(
        [str(dump)], folder / "positions", IngestConfig(val_share=0.1, test_share=0.1), workers=1
    )
    return folder / "checkpoint", folder / "positions"


def start(
    config: ExploreConfig,
    out: Path,
    inputs: Sequence[Path] = (),
    *,
    workers: int = 1,
    kill_after: int = 0,
    engine: str = "local",
) -> "subprocess.Popen[str]":
    """Begin a generation in a process of its own, and come back when it is about to start.

    `inputs` are a checkpoint and datasets. The process kills itself when `kill_after` games or
    positions are finished, earlier ones included; 0 for never.
    """
    words = [
        to_json(config).decode(),
        str(out),
        engine,
        *map(str, (workers, kill_after, *inputs)),
    ]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    process = forked.Popen(
        [sys.executable, "-c", RUN, *words],
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    return process


def records(out: Path) -> list[dict[str, Any]]:
    """Read games.jsonl."""
    return [json.loads(line) for line in (out / "games.jsonl").read_text().splitlines()]


def told(out: Path) -> dict[str, Any]:
    """Give the hash of every file, and of the manifest all but its timing."""
    files: dict[str, Any] = datasets.content(out)
    manifest = datasets.manifest(out)
    manifest["selfplay"].pop("timing")
    return {**files, "manifest.json": manifest}


def journalled(out: Path) -> set[int]:
    """Give the numbers of the games, or groups of positions, whose lines stand whole in the
    journal."""
    found = set()
    for path in (out / ".journal").glob("*.jsonl"):
        whole, _, _ = path.read_bytes().rpartition(b"\n")
        entries = [json.loads(line[9:]) for line in whole.splitlines()]
        found |= {entry["record"]["number"] for entry in entries if "record" in entry}
    return found
