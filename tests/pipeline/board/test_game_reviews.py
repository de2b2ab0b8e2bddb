"""Reviews of many games of one player."""

import json
import pickle
from collections.abc import Generator
from pathlib import Path
from typing import Any

import chess
import pytest

from engine.progress import never
from pipeline.board import game_reviews
from pipeline.board.game import GameError
from pipeline.board.game_reviews import GamesRequest, review_games
from pipeline.cli.main import parse
from pipeline.executors.local import LocalEngine, Result
from pipeline.samples.shipped import EMBEDDED
from tests.pipeline.board.games import HANGS, MATED, SHORT, game


def review(pgn: str, name: str = "") -> tuple[dict, list[dict], dict]:
    """Return the header, the steps and the last summary."""
    header, *steps = review_games(GamesRequest(pgn=pgn, name=name), EMBEDDED)
    return header["header"], steps, steps[-1]["summary"]


def test_mistakes_have_kinds_phases_and_examples_that_open() -> None:
    header, steps, summary = review(game(HANGS, "me", "you", "0-1") + game(MATED, "a", "Me", "1-0"))
    assert header["player"] in ("me", "Me")
    assert [step["done"] for step in steps] == [1, 2]
    found = {one["kind"]: one for one in summary["mistakes"]}
    assert {"left a piece hanging", "allowed a mate"} <= set(found)
    for one in summary["mistakes"]:
        assert one["phase"] == "opening"
        for row in one["examples"]:
            kept = header["games"][row["game"]]
            board = chess.Board(kept["start"])
            for uci in kept["moves"][: row["ply"] - 1]:
                board.push_uci(uci)
            assert kept["moves"][row["ply"] - 1] == row["uci"] != row["best_uci"]
            assert chess.Move.from_uci(row["best_uci"]) in board.legal_moves
    names = [row["text"].split(" lost")[0] for row in found["left a piece hanging"]["examples"]]
    assert "8. Bh6" in names
    assert found["allowed a mate"]["examples"][0]["text"].startswith("3... Nf6")


def test_openings_and_time_trouble_are_counted() -> None:
    lost, won = (game(MATED, *names, "1-0") for names in (("a", "me"), ("me", "a")))
    _, _, summary = review(lost * 2 + won * 5, "ME")
    (row,) = summary["openings"]
    assert (row["opening"], row["side"], row["games"]) == ("Open Game", "white", 5)
    assert (row["score"], row["expected"]) == pytest.approx((1.0, 0.5))
    time = summary["time"]
    # the first move of each side has no clock before it; nobody was below 6 of 60 seconds
    assert (time["short"]["moves"], time["other"]["moves"]) == (0, 2 * 2 + 5 * 3)
    short = MATED.replace("0:00:09", "0:00:04").replace("0:00:30", f"{'9' * 400}:00:00")
    _, _, summary = review(game(short, "a", "me", "1-0"), "me")
    assert summary["time"]["short"] == {"moves": 1, "mistakes": 1, "share": 1.0}


class LastFirst(LocalEngine):
    """Other processes may end in this order."""

    def map(self, function: Any, items: Any, cancelled: Any = never) -> Generator[Result]:
        function, items = pickle.loads(pickle.dumps((function, items)))
        yield from reversed([*LocalEngine(1).map(function, items, cancelled)])


def test_the_order_in_which_games_are_done_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    games = game(HANGS, "me", "you", "0-1") + game(MATED, "you", "me", "1-0")
    request = GamesRequest(pgn=games, name="me")
    before = [*review_games(request, EMBEDDED)]
    monkeypatch.setattr(game_reviews, "LocalEngine", LastFirst)
    assert [*review_games(request, EMBEDDED)] == before


def test_evaluations_of_the_games_are_kept_and_bad_games_are_counted() -> None:
    bad = '[Event "x"]\n[Variant "Atomic"]\n\n1. e4 e5\n\n[Event "x"]\n\n1. e4 Ke5 *\n\n'
    bad += '[Event "x"]\n[FEN "QQQQQQQk/QQQQ4/8/8/8/8/8/K7 w - - 0 1"]\n\n1. Kb1 *\n\n'
    header, _, summary = review(bad + SHORT, "A <img src=x onerror=alert(1)>")
    assert "standard chess" in header["notes"]
    assert "cannot be read" in header["notes"]
    assert "cannot be played (1)" in header["notes"]
    assert not summary["mistakes"]  # White lost nothing by the game's evaluations
    with pytest.raises(GameError, match="none of these 1 games"):
        review(SHORT, "nobody")


def test_the_command_reviews_the_games_of_a_player(tmp_path: Path) -> None:
    (tmp_path / "games.pgn").write_text(game(HANGS, "me", "you", "0-1"))
    found = parse(["review", str(tmp_path / "games.pgn"), "--player", "me", "--json"]).run()
    assert json.loads(json.dumps(found))["mistakes"]
    assert "8. Bh6" in found["text"]
