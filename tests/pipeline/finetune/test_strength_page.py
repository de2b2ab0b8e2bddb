"""The page of a fine-tuning, of two networks that have met: what it says is what the files say."""

import re
from pathlib import Path

import chess.pgn

from pipeline.finetune.outputs import promote
from pipeline.finetune.state import Generation, State, Verdict, publish_state
from pipeline.finetune.strength import strength
from tests.pipeline.finetune.fakes import network

ELO = {"games": 100, "score": 0.56, "elo": 41.5, "elo_low": 12.0, "elo_high": 71.0}
STATE = State(
    format_version=2,
    seconds=0.0,
    runs=[],
    generations=[
        Generation(
            number=0, stages={"eval": {"top1": 0.51}}, seconds={}, ended={}, verdict=Verdict(promoted=True, reason="")
        ),
        Generation(
            number=1,
            stages={"arena": {"best": {**ELO, "sprt": {"verdict": "H0", "llr": -2.95}}, "seed": None}},
            seconds={},
            ended={},
            verdict=Verdict(reason="the gate <b>closed</b>"),
        ),
        Generation(
            number=2,
            stages={"arena": {"seed": ELO}, "eval": {"top1": 0.505}},
            seconds={},
            ended={},
            verdict=Verdict(promoted=True, reason=""),
        ),
    ],
)


def test_the_page_shows_generations_matches_boards_and_every_move(tmp_path: Path) -> None:
    tuned, out = tmp_path / "tuned", tmp_path / "out"
    network(tuned / "seed", 0)
    promote(network(tmp_path / "trained", 1), tuned / "best", 2, {"generation": 2})
    publish_state(tuned, STATE)
    strength(tuned, out, simulations=(2,), games=2, hand_written=0, engine="", nodes=())
    (pgn,) = out.glob("*/games.pgn")
    page = (out / "report.html").read_text()
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
