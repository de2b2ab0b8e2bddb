"""Games to click through: what the page says of each move is what the PGN says."""

import io

import chess.pgn

from pipeline.evaluation.page.games import games_page, shown_game

PGN = """[White "<b>one</b>"]
[Black "two"]
[Result "0-1"]

1. f3 { [%eval -0.5] } 1... e5 { [%eval -0.6] } 2. g4 { [%eval #-1] } 2... Qh4# 0-1
"""


def test_moves_are_told_with_their_evaluations_from_whites_view() -> None:
    game = chess.pgn.read_game(io.StringIO(PGN))
    assert game is not None
    shown = shown_game(0, game)
    assert [move["text"] for move in shown["moves"]] == ["1. f3 (-0.50)", "1... e5 (-0.60)", "2. g4 (#-1)", "2... Qh4#"]
    assert "White\u2019s" not in shown["curve"]
    assert "White's" in shown["curve"]
    page = games_page("Games", [game]).decode()
    assert page.count("<details name=") == 4
    assert "&lt;b&gt;one&lt;/b&gt;" in page
    assert "<script" not in page


def test_a_game_without_evaluations_has_no_curve() -> None:
    game = chess.pgn.read_game(io.StringIO("1. e4 *"))
    assert game is not None
    assert shown_game(0, game)["curve"] == ""
