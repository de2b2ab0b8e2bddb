"""Generations for tests: small settings, a process to kill, and what must be the same however the games were played."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from pydantic_core import to_json

from engine.search import SearchConfig
from pipeline.selfplay.config import ExploreConfig
from tests import forked
from tests.conftest import REPOSITORY
from tests.pipeline import datasets

SMALL: dict[str, Any] = {
    "full_share": 0.25,
    "games": 24,
    "explorer": "hand-written",
    "width": 8,
    "most_plies": 50,
    "quick_simulations": 2,
    "resign": 0.6,
    "resign_plies": 10,
    "played_on": 0.5,
    "val_share": 0.3,
    "test_share": 0.2,
    "search": SearchConfig(algorithm="gumbel", simulations=6, max_considered_actions=4),
}

RUN = """
import json, os, resource, signal, stat, sys
from pathlib import Path
from engine.search import SearchConfig
from pipeline.selfplay.config import ExploreConfig, ExploreError
from pipeline.selfplay.play import explore

settings, out, engine = json.loads(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
workers, limit, kill_at, kill_after = map(int, sys.argv[4:])
real = os.fsync

def fsync(descriptor):  # a file is written, and not yet under its name
    global kill_at
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        kill_at -= 1
        if kill_at == 0:
            os.kill(os.getpid(), signal.SIGKILL)
    real(descriptor)

os.fsync = fsync
if limit:
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
config = ExploreConfig(**{**settings, "search": SearchConfig(**settings["search"])})

def progress(tick):
    if tick.done == kill_after:
        os.kill(os.getpid(), signal.SIGKILL)

print("begun", flush=True)
try:
    explore(None, config, out, engine=engine, workers=workers, progress=progress)
except ExploreError as error:
    print(error)
    sys.exit(2)
"""


def small(**changes: object) -> ExploreConfig:
    """Give settings that a test can play."""
    return ExploreConfig(**{**SMALL, **changes})


def start(
    config: ExploreConfig,
    out: Path,
    workers: int = 1,
    limit: int = 0,
    kill_at: int = 0,
    kill_after: int = 0,
    engine: str = "local",
) -> "subprocess.Popen[str]":
    """Begin a generation in a process of its own, and come back when it is about to play.

    No file may be longer than `limit` bytes; the process kills itself before its fsync number `kill_at`, or when
    `kill_after` games are finished, earlier ones included; 0 for none of these.
    """
    words = [to_json(config).decode(), str(out), engine, *map(str, (workers, limit, kill_at, kill_after))]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    process = forked.Popen(
        [sys.executable, "-c", RUN, *words], cwd=REPOSITORY, stdout=subprocess.PIPE, text=True, env=environment
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
    """Give the numbers of the games, or groups of positions, whose lines stand whole in the journal."""
    found = set()
    for path in (out / ".journal").glob("*.jsonl"):
        whole, _, _ = path.read_bytes().rpartition(b"\n")
        entries = [json.loads(line) for line in whole.splitlines()]
        found |= {entry["record"]["number"] for entry in entries if "record" in entry}
    return found
