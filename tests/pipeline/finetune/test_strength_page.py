"""The page of a fine-tuning, of two networks that have met: what it says is what the files say."""

import csv
import math
import re
import sys
from pathlib import Path

import chess.pgn
import polars as pl
import pytest

from pipeline.finetune.outputs import promote
from pipeline.finetune.state import generation
from pipeline.finetune.strength import strength
from pipeline.finetune.strength_page import generations, targets
from pipeline.selfplay.config import ExploreConfig
from pipeline.selfplay.job import explore
from tests.pipeline.finetune.fakes import network
from tests.pipeline.judging import ENGINE
from tests.pipeline.selfplay.generations import SMALL

ROWS = [
    {"generation": 0, "verdict": "promoted", "seed_elo": 0.0, "seed_elo_low": 0.0, "seed_elo_high": 0.0, "top1": 0.51},
    {
        "generation": 1,
        "verdict": "rejected",
        "gate_verdict": "H0",
        "gate_llr": -2.95,
        "reason": "the gate <b>closed</b>",
    },
    {
        "generation": 2,
        "verdict": "promoted",
        "seed_elo": 41.5,
        "seed_elo_low": 12.0,
        "seed_elo_high": 71.0,
        "top1": 0.505,
    },
]


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Play two games between two untrained networks, after two generations that are written by hand."""
    folder = tmp_path_factory.mktemp("strength")
    tuned = folder / "tuned"
    network(tuned / "seed", 0)
    promote(network(folder / "trained", 1), tuned / "best", 2, {"generation": 2})
    games = SMALL | {"games": 4, "most_plies": 30}
    explore(None, ExploreConfig(**games), generation(tuned, 2) / "selfplay", workers=1)
    judge = folder / "engine"
    judge.write_text(f"#!{sys.executable}\n{ENGINE.replace('MOST', 'None')}", encoding="utf-8")
    judge.chmod(0o755)
    with (tuned / "generations.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(dict.fromkeys(name for row in ROWS for name in row)))
        writer.writeheader()
        writer.writerows(ROWS)
    strength(tuned, folder / "out", simulations=(2,), games=2, hand_written=0, engine=str(judge), nodes=(), judged=4)
    return folder


def test_the_page_shows_generations_matches_boards_and_every_move(measured: Path) -> None:
    (pgn,) = (measured / "out").glob("*/games.pgn")
    page = (measured / "out" / "report.html").read_text()
    with pgn.open() as file:
        games = list(iter(lambda: chess.pgn.read_game(file), None))
    moves = sum(len(list(game.mainline())) for game in games)
    assert page.count("<details name=") == moves
    assert "Elo against the seed" in page
    assert "human top-1" in page
    assert "+42" in page
    assert "+42 (+12 to +71)" in page
    assert "the gate &lt;b&gt;closed&lt;/b&gt;" in page
    assert "What the policy learned" in page
    assert re.search(r"seed: [^ ]+ \d+%, best: [^ ]+ \d+%", page)
    assert "<script" not in page
    assert len(page) < 3 << 20


def test_the_page_weighs_seed_and_best_on_positions_that_an_engine_judged(measured: Path) -> None:
    page = (measured / "out" / "report.html").read_text()
    judged = page.partition("Judged by an engine")[2].partition("<h2>")[0]
    assert "of 4 positions" in judged
    rows = re.findall(r"<tr><td>(\w+) 2</td><td>(0\.\d+)</td>", judged)
    assert [name for name, _ in rows] == ["seed", "best"]
    assert all(0 < float(loss) < 1 for _, loss in rows), "each move is worth less than the one before it"
    assert len((measured / "out" / "judged" / "judged.jsonl").read_text().splitlines()) == 4


def test_targets_are_the_searches_of_the_bests_own_generation(measured: Path) -> None:
    found = targets(measured / "tuned")
    assert found is not None
    played = pl.read_parquet(generation(measured / "tuned", 2) / "selfplay" / "train-*.parquet")
    searched = played.filter(pl.col("visits").is_not_null())
    assert (found["generation"], found["rows"]) == (2, len(searched))
    assert all(0 < found[name] < math.log(60) for name in ("before", "after")), "untrained policies are almost uniform"
    assert 0 < len(found["boards"]) <= searched["game"].n_unique()
    for board in found["boards"]:
        words = re.fullmatch(
            r"seed: (\S+); search: (\S+) (\d+)%, by the seed (\d+)%, by the best (\d+)%", board["caption"]
        )
        assert words is not None, board["caption"]
        assert words[1] != words[2]
        assert int(words[4]) <= int(words[5])
    assert "Targets of self-play, before and after" in (measured / "out" / "report.html").read_text()


def test_generations_are_read_as_they_were_written(measured: Path) -> None:
    found = generations(measured / "tuned" / "generations.csv")
    for row, wanted in zip(found, ROWS, strict=True):
        for name, value in wanted.items():
            assert row[name] == value
    assert found[1]["seed_elo"] is None
    assert generations(measured / "nowhere.csv") == []
