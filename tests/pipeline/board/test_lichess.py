"""The download of a Lichess user's games, from a local server in place of Lichess."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from pipeline.board import lichess
from pipeline.board.lichess import LichessRequest, download
from pipeline.errors import FetchError
from tests.pipeline.board.games import SHORT


@contextmanager
def answering(*answers: tuple[int, bytes]) -> Iterator[tuple[str, list[str]]]:
    """Serve the answers in order; yield the address and the list of requested paths."""
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


def test_games_are_streamed_and_status_429_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lichess, "WAIT_SECONDS", 1)
    text = (SHORT + "\n") * 1000 + "ä"
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
def test_errors_name_the_way_to_export_games(status: int, words: str) -> None:
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
