"""The board as a process: clients that leave, Ctrl-C, many reviews, and ports in use."""

import json
import os
import signal
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest
import requests

from engine.errors import UserError
from pipeline.board.local_server import listen
from pipeline.board.networks import Networks
from pipeline.board.server import MAX_REVIEWS, serve
from tests.pipeline.board.served import serving
from tests.processes import read_command_line
from tests.waiting import drop_slow_lines, until

if TYPE_CHECKING:
    import subprocess

LONG_GAME = "Nf3 Nf6 Ng1 Ng8 " * 150
STOCKFISH = """
import sys, time
for line in sys.stdin:
    word = line.split()[0]
    if word == "uci":
        time.sleep(2.5)
        print("option name Threads type spin default 1 min 1 max 8\\nuciok", flush=True)
    elif word == "isready":
        print("readyok", flush=True)
    elif word == "go":
        time.sleep(0.1)
        print("info depth 1 score cp 20\\nbestmove 0000", flush=True)
    elif word == "quit":
        break
"""
"""An engine that starts in 2.5 s, longer than a server that stops waits for its requests."""


class Board:
    """A running `fianchetto play`."""

    def __init__(self, process: "subprocess.Popen[str]", url: str) -> None:
        self.process, self.url = process, url
        self.lines: list[Iterator[bytes]] = []
        """Streams of reviews; a stream that is garbage-collected closes its connection."""

    def post(self, name: str, **body: Any) -> requests.Response:
        return requests.post(f"{self.url}/api/{name}", json=body, timeout=300)

    def begin_review(self) -> requests.Response:
        """Start a review, and return once its header has arrived."""
        body = {"pgn": LONG_GAME, "network": "embedded", "source": "stockfish"}
        answer = requests.post(f"{self.url}/api/review", json=body, stream=True, timeout=300)
        self.lines.append(answer.iter_lines(chunk_size=1))
        assert "header" in json.loads(next(self.lines[-1]))
        return answer

    def engines(self) -> list[psutil.Process]:
        below = psutil.Process(self.process.pid).children()
        return [child for child in below if "stockfish" in read_command_line(child)]


def test_reviews_end_with_their_clients_and_ctrl_c_says_one_line(tmp_path: Path) -> None:
    (tmp_path / "stockfish").write_text(f"#!{sys.executable}\n{STOCKFISH}")
    (tmp_path / "stockfish").chmod(0o755)
    with serving(PATH=f"{tmp_path}:{os.environ['PATH']}") as (process, url):
        board = Board(process, url)
        reviews = [board.begin_review() for _ in range(MAX_REVIEWS + 2)]
        until(lambda: len(board.engines()) == MAX_REVIEWS)
        assert board.post("play", network="embedded", moves=["e4"]).ok
        assert len(board.engines()) == MAX_REVIEWS
        for review in reviews:
            review.close()
        until(lambda: not board.engines())
        disconnect_within_a_request(url)
        with board.begin_review():
            until(board.engines)
            process.send_signal(signal.SIGINT)
            assert process.wait(120) == 130
        (line,) = drop_slow_lines(process.stdout.read()).splitlines()
        assert "interrupted" in line


def disconnect_within_a_request(url: str) -> None:
    """Send half of a request's body and disconnect."""
    host, _, port = url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port))) as client:
        head = "POST /api/play HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        client.sendall(f"{head}Content-Length: 999\r\n\r\n{{".encode())
        time.sleep(0.2)


def test_a_bad_port_and_a_taken_one_are_refused() -> None:
    with listen(0, "--port") as listener:
        port = listener.getsockname()[1]
        for bad, words in ((80_000, "65535"), (-1, "65535"), (port, "in use")):
            with pytest.raises(UserError, match=rf"port {bad}.*{words}.*--port"):
                serve(Networks(), bad)
