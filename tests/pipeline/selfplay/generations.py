"""Small generations for tests: settings, inputs, a process to kill, and readers of the results."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from engine.search import SearchConfig
from pipeline.ingest.chunk import IngestConfig
from pipeline.ingest.job import ingest
from pipeline.selfplay.config import ExploreConfig
from tests import forked
from tests.conftest import REPOSITORY
from tests.model.test_checkpoint import make
from tests.pipeline import datasets

GAME_SETTINGS: dict[str, Any] = {
    "games": 24,
    "explorer": "hand-written",
    "width": 8,
    "most_plies": 50,
    "resign": 0.6,
    "search": SearchConfig(algorithm="gumbel", simulations=6, max_considered_actions=4),
}
SEARCH_SETTINGS: dict[str, Any] = {
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
import sys
from pathlib import Path
from pipeline.selfplay.job import explore
from tests.pipeline.selfplay.generations import small

print("begun", flush=True)
explore(None, small(games=int(sys.argv[1])), Path(sys.argv[2]), workers=2)
"""


def small(**changes: object) -> ExploreConfig:
    """Return settings for a few short games of the hand-written player."""
    return ExploreConfig(**{**GAME_SETTINGS, **changes})


def searched(**changes: object) -> ExploreConfig:
    """Return settings for searches of a few human positions by a network."""
    return ExploreConfig(**{**SEARCH_SETTINGS, **changes})


def make_dataset(folder: Path, games: int, **settings: Any) -> Path:
    """Ingest random games, games.pgn in `folder`; return the dataset's folder."""
    dump, config = datasets.dump(folder / "games.pgn", games), IngestConfig(**settings)
    ingest([str(dump)], folder / "positions", config, workers=1)
    return folder / "positions"


def prepare(folder: Path, games: int = 60) -> tuple[Path, Path]:
    """Make a checkpoint and a dataset of random games; return their folders."""
    make(folder / "checkpoint")
    return folder / "checkpoint", make_dataset(folder, games, val_share=0.1, test_share=0.1)


def start(games: int, out: Path) -> "subprocess.Popen[str]":
    """Start a process that plays small games with two workers; return when it is about to begin."""
    command = [sys.executable, "-c", RUN, str(games), str(out)]
    variables = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    process = forked.Popen(
        command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True, env=variables
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    return process


def records(out: Path) -> list[dict[str, Any]]:
    """Read the records of games.jsonl."""
    return [json.loads(line) for line in (out / "games.jsonl").read_text().splitlines()]


def journaled_items(out: Path) -> set[int]:
    """Return the numbers of the items with a complete line in the journal."""
    numbers = set()
    for path in (out / ".journal").glob("*.jsonl"):
        complete, _, _ = path.read_bytes().rpartition(b"\n")
        entries = [json.loads(line[9:]) for line in complete.splitlines()]
        numbers |= {entry["record"]["number"] for entry in entries if "record" in entry}
    return numbers
