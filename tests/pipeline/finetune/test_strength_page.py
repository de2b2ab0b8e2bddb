"""The page of a fine-tuning, of two networks that have met: what it says is what the files say."""

import csv
import re
from pathlib import Path

import chess.pgn
import pytest

from pipeline.finetune.strength import strength
from pipeline.finetune.strength_page import generations
from tests.pipeline.defs.test_tuned import network

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
    network(tuned / "best", 1)
    with (tuned / "generations.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(dict.fromkeys(name for row in ROWS for name in row)))
        writer.writeheader()
        writer.writerows(ROWS)
    strength(tuned, folder / "out", simulations=(2,), games=2, hand_written=0, engine="", nodes=())
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
    assert "the gate &lt;b&gt;closed&lt;/b&gt;" in page
    assert "What the policy learned" in page
    assert re.search(r"seed: [^ ]+ \d+%, best: [^ ]+ \d+%", page)
    assert "<script" not in page
    assert len(page) < 3 << 20


def test_generations_are_read_as_they_were_written(measured: Path) -> None:
    found = generations(measured / "tuned" / "generations.csv")
    for row, wanted in zip(found, ROWS, strict=True):
        for name, value in wanted.items():
            assert row[name] == value
    assert found[1]["seed_elo"] is None
    assert generations(measured / "nowhere.csv") == []
