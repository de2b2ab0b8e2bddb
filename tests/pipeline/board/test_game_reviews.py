"""Reviews of many games of one player, and the download of a Lichess user's games."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import chess
import pytest

import model
from pipeline.board import lichess
from pipeline.board.game import GameError
from pipeline.board.game_reviews import GamesRequest, review_games
from pipeline.board.lichess import LichessRequest, download
from pipeline.cli.main import parse
from pipeline.errors import FetchError
from pipeline.samples.shipped import EMBEDDED
from tests.pipeline.board.games import HANGS, MATED, SHORT, game


@cache
def player() -> Any:
    return model.load(EMBEDDED, device="cpu")


def review(pgn: str, name: str = "") -> tuple[dict, list[dict], dict]:
    """Return the header, the steps and the last summary."""
    header, *steps = review_games(GamesRequest(pgn=pgn, name=name), player())
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
    # Black's third move, of two games, was made with 9 of 60 seconds; White never was short
    assert (time["short"]["moves"], time["other"]["moves"]) == (0, 2 * 1 + 5 * 2)
    short = MATED.replace("0:00:09", "0:00:04")
    _, _, summary = review(game(short, "a", "me", "1-0"), "me")
    assert summary["time"]["short"] == {"moves": 1, "mistakes": 1, "share": 1.0}


def test_evaluations_of_the_games_are_kept_and_bad_games_are_counted() -> None:
    bad = '[Event "x"]\n[Variant "Atomic"]\n\n1. e4 e5\n\n[Event "x"]\n\n1. e4 Ke5 *\n\n'
    header, _, summary = review(bad + SHORT, "A <img src=x onerror=alert(1)>")
    assert "standard chess" in header["notes"]
    assert "cannot be read" in header["notes"]
    assert not summary["mistakes"]  # White lost nothing by the game's evaluations
    with pytest.raises(GameError, match="none of these 1 games"):
        review(SHORT, "nobody")


def test_the_command_reviews_the_games_of_a_player(tmp_path: Path) -> None:
    (tmp_path / "games.pgn").write_text(game(HANGS, "me", "you", "0-1"))
    found = parse(["review", str(tmp_path / "games.pgn"), "--player", "me", "--json"]).run()
    assert json.loads(json.dumps(found))["mistakes"]
    assert "8. Bh6" in found["text"]


# ---------------------------------------------------------------- Lichess


@contextmanager
def answering(*answers: tuple[int, bytes]) -> Iterator[tuple[str, list[str]]]:
    """Serve the answers in order; give the address and the paths that were asked for."""
    left, asked = list(answers), list[str]()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(f"{self.path} {self.headers['Accept']}")
            status, body = left.pop(0)
            self.send_response(status)
            self.send_header("Location", "http://evil.test/")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", asked
        server.shutdown()


def test_games_are_streamed_and_too_many_requests_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lichess, "WAIT_SECONDS", 1)
    text = (SHORT + "\n") * 200 + "ä"
    with answering((429, b""), (200, text.encode())) as (server, asked):
        parts = list(download(LichessRequest(name="Me_1", games=200), server))
    assert parts[0] == {"wait": 1}
    assert "".join(part.get("pgn", "") for part in parts) == text
    assert len(parts) > 3
    assert asked[0] == asked[1]
    assert asked[0].startswith("/api/games/user/Me_1?max=200")
    assert asked[0].endswith("application/x-chess-pgn")


@pytest.mark.parametrize(
    ("status", "words"), [(404, "no player"), (302, "status 302.*download"), (500, "drop the")]
)
def test_failures_say_how_to_go_on(status: int, words: str) -> None:
    with (
        answering((status, b"")) as (server, asked),
        pytest.raises(FetchError, match=words),
    ):
        list(download(LichessRequest(name="me"), server))
    assert len(asked) == 1  # a redirect is not followed


def test_without_a_network_the_way_to_export_is_named() -> None:
    with pytest.raises(FetchError, match=r"cannot be reached.*lichess\.org/@/me/download"):
        list(download(LichessRequest(name="me"), "http://127.0.0.1:1"))
    with pytest.raises(ValueError, match="name"):
        LichessRequest(name="../me")
