"""Generations for tests: small settings, a process to kill, and what must be the same however the
work was done."""

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
import json, sys
from pathlib import Path
from engine.search import SearchConfig
from pipeline.selfplay.config import ExploreConfig
from pipeline.selfplay.job import explore

settings = json.loads(sys.argv[1])
config = ExploreConfig(**{**settings, "search": SearchConfig(**settings["search"])})
print("begun", flush=True)
explore(None, config, Path(sys.argv[2]), workers=2)
"""


def small(**changes: object) -> ExploreConfig:
    """Return settings of games that a test can play."""
    return ExploreConfig(**{**SMALL, **changes})


def searched(**changes: object) -> ExploreConfig:
    """Return settings with which a test can search positions."""
    return ExploreConfig(**{**SEARCHED, **changes})


def prepare(folder: Path, games: int = 60) -> tuple[Path, Path]:
    """Make a checkpoint and a dataset of random games: their folders."""
    make(folder / "checkpoint")
    dump = datasets.dump(folder / "games.pgn", games)
    config = IngestConfig(val_share=0.1, test_share=0.1)
    ingest([str(dump)], folder / "positions", config, workers=1)
    return folder / "checkpoint", folder / "positions"


def start(config: ExploreConfig, out: Path) -> "subprocess.Popen[str]":
    """Begin games in a process of its own with two workers, and come back when it is to start."""
    words = [sys.executable, "-c", RUN, to_json(config).decode(), str(out)]
    variables = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    process = forked.Popen(words, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True, env=variables)
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    return process


def records(out: Path) -> list[dict[str, Any]]:
    """Read games.jsonl."""
    return [json.loads(line) for line in (out / "games.jsonl").read_text().splitlines()]


def untimed_content(out: Path) -> dict[str, Any]:
    """Return the hash of every file, and of the manifest all but its timing."""
    files: dict[str, Any] = datasets.content(out)
    manifest = datasets.manifest(out)
    manifest["selfplay"].pop("timing")
    return {**files, "manifest.json": manifest}


def journalled(out: Path) -> set[int]:
    """Return the numbers of the games, or groups of positions, whose lines stand whole in the
    journal."""
    found = set()
    for path in (out / ".journal").glob("*.jsonl"):
        whole, _, _ = path.read_bytes().rpartition(b"\n")
        entries = [json.loads(line[9:]) for line in whole.splitlines()]
        found |= {entry["record"]["number"] for entry in entries if "record" in entry}
    return found
