"""Reviews of one game: losses, probabilities, moments, the risk of a blunder, and the command."""

import json
import math
from functools import cache
from pathlib import Path
from typing import Any

import chess
import numpy as np
import pytest

import model
from pipeline.board import scores
from pipeline.board.game import read_pgn
from pipeline.board.review import ReviewRequest, review
from pipeline.board.scores import BLUNDER, MoveLosses, predict_risk
from pipeline.cli.main import parse
from pipeline.samples.shipped import EMBEDDED_CHECKPOINT
from pipeline.storage.preflight import is_installed
from tests.pipeline.board.games import EVALS, SHORT, UNSCORED


@cache
def player() -> Any:
    return model.load(EMBEDDED_CHECKPOINT, device="cpu")


def review_rows(pgn: str, source: str = "auto") -> tuple[dict, list[dict], dict]:
    """Return a review's header, rows and summary."""
    header, *parts, last = review(ReviewRequest(pgn=pgn, source=source), player())
    return header["header"], [part["row"] for part in parts], last["summary"]


def curve(centipawns: int) -> float:
    """Return the expected score by the curve of docs/glossary.md, with its margin and slope."""
    win, loss = (1 / (1 + math.exp((98 - sign * centipawns) / 517)) for sign in (1, -1))
    return (win + 1 - loss) / 2


@pytest.fixture(scope="module")
def rows() -> list[dict]:
    return review_rows(SHORT)[1]


def test_losses_follow_from_the_games_evaluations(rows: list[dict]) -> None:
    white = [*map(curve, EVALS), 1.0]
    assert [row["before"] for row in rows] == pytest.approx(white[:-1], abs=1e-5)
    for ply, row in enumerate(rows):
        lost = (white[ply] - white[ply + 1]) * (1 if ply % 2 == 0 else -1)
        assert row["loss"] == pytest.approx(max(lost, 0), abs=1e-5)
        assert row["blunder"] == (lost > BLUNDER)
    assert [row["name"] for row in rows if row["blunder"]] == ["3... Nf6"]


def test_probabilities_are_those_of_the_movers_rating(rows: list[dict]) -> None:
    board = chess.Board()
    board.push_san("e4")
    known = player().choose(board, rating=1100, opponent_rating=1500).probabilities
    assert rows[1]["probability"] == pytest.approx(known[chess.Move.from_uci("e7e5")], abs=1e-6)
    assert rows[6]["found"]
    assert rows[6]["best"] == "Qxf7#"
    assert rows[6]["best_probability"] > 0.5


def test_variations_are_skipped() -> None:
    game = read_pgn("1. e4 (1. d4 d5 (1... Nf6) 2. c4) 1... e5 (1... c5) 2. Nf3 *")
    assert [move.uci() for move in game.mainline_moves()] == ["e2e4", "e7e5", "g1f3"]
    assert len(game.variations) == 1


def test_mates_and_promotions_are_reviewed() -> None:
    pgn = '[FEN "8/P5k1/8/8/8/8/8/7K w - - 0 1"]\n\n1. a8=N *'
    header, (row,), _ = review_rows(pgn, "search")
    assert header["ratings"] == {"white": 1500, "black": 1500}
    assert "white's rating is unknown" in header["about"]
    assert (row["name"], row["best"]) == ("1. a8=N", "a8=Q")
    assert row["loss"] > BLUNDER
    # policies name the square, not the piece
    assert row["probability"] == row["best_probability"] > 0.9


def test_a_mate_counts_as_a_won_game_and_a_missed_one_in_a_won_game_is_no_blunder() -> None:
    start = '[FEN "6k1/5ppp/8/8/8/8/5PPP/4Q1K1 w - - 0 1"]\n\n'
    for pgn, source in (("1. Kf1 { [%eval 20.0] }", "game"), ("1. Kf1", "search")):
        _, (row,), _ = review_rows(start + pgn, source)
        if source == "search":
            assert (row["before"], row["best"]) == (1.0, "Qe8#")
            assert row["loss"] == pytest.approx(1 - row["score"])
        assert not row["blunder"]
    lost = '[FEN "1r4k1/8/8/8/8/8/5PPP/6K1 w - - 0 1"]\n\n1. Kh1 { [%eval #-1] }'
    assert scores.score_in_game(read_pgn(lost).end()) == 0.0


def test_the_risk_grows_with_the_policy_on_blunders_and_falls_with_the_rating() -> None:
    def risk(on_blunder: float, rating: int = 1500) -> float:
        return predict_risk(
            MoveLosses(np.array([1 - on_blunder, on_blunder]), np.array([0.0, 0.4]), 0.5), rating
        )

    assert risk(0.0) < 0.03
    assert risk(0.0) < risk(0.1) < risk(0.5) < risk(0.9) < 1
    assert risk(0.3, 2400) < risk(0.3, 1000)


def test_the_command_prints_what_the_page_shows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], rows: list[dict]
) -> None:
    (tmp_path / "game.pgn").write_text(SHORT)
    found = parse(["review", str(tmp_path / "game.pgn"), "--json"]).run()
    assert json.loads(json.dumps(found))["rows"] == rows
    black = found["sides"]["black"]
    assert black["blunder"] == pytest.approx(1 / 3)
    assert black["risk"] == pytest.approx(
        np.mean([row["risk"] for row in rows if row["side"] == "black"])
    )
    assert "others at this rating" in found["text"]
    assert "3... Nf6: lost 0.52" in found["text"]


@pytest.mark.skipif(
    not is_installed("stockfish"),
    reason="there is no stockfish here (Debian: apt-get install stockfish)",
)
def test_stockfish_scores_a_game_that_has_no_evaluations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scores, "STOCKFISH_NODES", 10_000)
    header, rows, summary = review_rows(UNSCORED)
    assert header["source"] == "stockfish"
    assert [row["name"] for row in rows if row["blunder"]] == ["3... Nf6"]
    assert rows[6]["found"]
    assert 5 in summary["moments"]


@pytest.mark.parametrize(
    "pgn",
    [
        '[FEN "k7/8/8/8/8/8/r7/K7 w - - 0 1"]\n\n1. Kxa2 Kb8 2. Kb1',  # bare kings
        '[FEN "7k/8/8/8/8/8/R7/K7 w - - 149 80"]\n\n1. Ra3 Kg8',  # 75 moves
    ],
)
def test_a_game_that_goes_on_after_a_draw_by_the_rules_is_reviewed_to_its_end(pgn: str) -> None:
    header, rows, _ = review_rows(pgn, "search")
    assert [row["uci"] for row in rows] == header["moves"]
    board, drawn = chess.Board(header["start"]), 0
    for row in rows:
        board.push_uci(row["uci"])
        if board.outcome():
            drawn += 1
            assert row["score"] == 0.5
    assert drawn
