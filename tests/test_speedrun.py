"""Run speedrun.sh on a few games: a stopped run resumes, and the printed table has every step."""

import os
import re
import subprocess
from pathlib import Path

import pytest
import zstandard

from pipeline.samples.shipped import SAMPLE_DUMP
from tests.conftest import REPOSITORY

NUM_GAMES = 120
SHORT_FINETUNING = (
    "--generations 1 --workers 1 --games-share 1 --teach both --set train.epochs=1"
    " --set explore.games=8 --set explore.width=8 --set explore.search.simulations=4"
    " --set explore.most_plies=40"
    " --set gate.games=8 --set gate.simulations=2 --set gate.seed_games=4 --set gate.elo0=-900"
    " --set gate.elo1=-100 --set gate.max_top1_drop=1 --set most_uses=1 --set train.batch_size=16"
)


@pytest.mark.slow
def test_speedrun_resumes_and_prints_the_time_of_each_step(tmp_path: Path) -> None:
    with zstandard.open(SAMPLE_DUMP, "rt") as sample:
        games = re.split(r"(?=^\[Event )", sample.read(), flags=re.MULTILINE)[1 : NUM_GAMES + 1]
    (tmp_path / "games.pgn").write_text("".join(games))
    (tmp_path / "other.pgn").write_text("".join(games[1:]))
    settings = {"OUT": str(tmp_path / "out"), "MINUTES": "0.1", "PRICE": "3600"}
    settings |= {"MATCH": "--games 2 --simulations 2"}

    def run(finetune_options: str, dump: str = "games.pgn") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [REPOSITORY / "speedrun.sh", dump],
            cwd=tmp_path,
            env=os.environ | settings | {"TUNE": finetune_options},
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )

    stopped = run("--generations 0")
    assert stopped.returncode == 2
    assert "run the same command to go on" in stopped.stderr
    weights = [path.stat().st_mtime_ns for path in (tmp_path / "out" / "network").glob("weights-*")]
    done = run(SHORT_FINETUNING)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "== train" in stopped.stderr
    assert "== train" not in done.stderr
    network = tmp_path / "out" / "network"
    assert weights == [path.stat().st_mtime_ns for path in network.glob("weights-*")]
    assert run(SHORT_FINETUNING, "other.pgn").returncode == 2, "the folder has other games"
    rows = dict(re.findall(r"^(\S+) +([0-9.]+)$", done.stdout, re.MULTILINE))
    assert {"ingest", "train", "report", "finetune", "total", "cost"} <= rows.keys()
    lines = (tmp_path / "out" / "times.tsv").read_text().splitlines()
    seconds = sum(int(line.split("\t")[1]) for line in lines if "other.pgn" not in line)
    assert float(rows["cost"]) == seconds  # the price is 3600 per hour
    assert (tmp_path / "out" / "tuned" / "best" / "checkpoint.json").exists()
