"""The bundled sample, legal games in Lichess's format, and its generator."""

import io
import re
from itertools import islice, pairwise
from pathlib import Path

import chess
import chess.pgn
import pytest
import zstandard

from model.inference.player import load
from pipeline.samples import make
from pipeline.samples.shipped import EMBEDDED_CHECKPOINT, SAMPLE_DUMP

MOVE = r"\d+\.(?:\.\.)? [KQRBNa-hO][^ ]* \{ \[%clk \d:\d\d:\d\d\] \}"
LAYOUT = re.compile(rf"(?:\[[A-Za-z]+ \"[^\"\n]+\"\]\n){{11}}\n(?:{MOVE} )*(?:1-0|0-1|1/2-1/2)\n\n")


@pytest.fixture(scope="module")
def text() -> str:
    with SAMPLE_DUMP.open("rb") as file:
        return zstandard.ZstdDecompressor().stream_reader(file).read().decode()


def test_the_dump_is_small_and_in_the_format_of_lichess(text: str) -> None:
    games = LAYOUT.findall(text)
    assert len(games) == 2000
    assert "".join(games) == text
    assert "lichess" not in text.lower()
    assert SAMPLE_DUMP.stat().st_size < 1_200_000


def test_python_chess_replays_the_games_and_agrees_on_their_results(text: str) -> None:
    stream = io.StringIO(text)
    mates = 0
    for game in islice(iter(lambda: chess.pgn.read_game(stream), None), 100):
        assert game is not None
        assert game.errors == []
        last = game.end()
        outcome = last.board().outcome(claim_draw=True)
        if outcome is not None:
            assert outcome.result() == game.headers["Result"]
            mates += outcome.termination is chess.Termination.CHECKMATE
        increment = int(game.headers["TimeControl"].split("+")[1])
        for side in (0, 1):
            clocks = [node.clock() or 0.0 for node in islice(game.mainline(), side, None, 2)]
            assert all(0 < after <= before + increment for before, after in pairwise(clocks))
    assert mates > 20


def test_the_stronger_player_scores_better(text: str) -> None:
    tags = r'\[Result "(.+)"\]\n(?:\[UTC.*\n){2}\[WhiteElo "(\d+)"\]\n\[BlackElo "(\d+)"\]'
    points = []
    for result, white, black in re.findall(tags, text):
        score = {"1-0": 1.0, "0-1": 0.0, "1/2-1/2": 0.5}[result]
        if white != black:
            points.append(score if int(white) > int(black) else 1.0 - score)
    assert len(points) > 1000
    assert sum(points) / len(points) > 0.53


def test_the_generator_is_deterministic(tmp_path: Path) -> None:
    make.main(tmp_path / "first.pgn.zst", 1)
    packed = zstandard.ZstdDecompressor().stream_reader((tmp_path / "first.pgn.zst").read_bytes())
    game = make.play_game(load(EMBEDDED_CHECKPOINT), 0)
    assert LAYOUT.fullmatch(game)
    assert packed.read().decode() == game
