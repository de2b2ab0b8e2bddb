"""The board as a process: clients that leave, Ctrl-C at any moment, many reviews, and requests that
make no sense."""

import json
import os
import random
import re
import signal
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import IO, Any

import psutil
import pytest
import requests

from engine.errors import UserError
from pipeline.board.local_server import listen
from pipeline.board.networks import Networks
from pipeline.board.server import REVIEWS, serve
from pipeline.board.turns import Turns
from tests import forked
from tests.conftest import REPOSITORY
from tests.processes import command
from tests.waiting import drop_slow_lines, until

LONG_GAME = "Nf3 Nf6 Ng1 Ng8 " * 400
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
"""An engine that finds nothing in 0.1 s, and starts more slowly than a server that ends waits for
its requests."""


@dataclass
class Board:
    """A running `fianchetto play`."""

    process: subprocess.Popen[str]
    url: str
    output: IO[str]
    lines: list[Iterator[bytes]] = field(default_factory=list)
    """Of reviews; one that is let go closes its connection."""

    def post(self, name: str, **body: Any) -> requests.Response:
        return requests.post(f"{self.url}/api/{name}", json=body, timeout=300)

    def begin_review(self) -> requests.Response:
        """Begin a review, and return when its header has come."""
        body = {"pgn": LONG_GAME, "network": "embedded", "source": "stockfish"}
        answer = requests.post(f"{self.url}/api/review", json=body, stream=True, timeout=300)
        self.lines.append(answer.iter_lines(chunk_size=1))
        assert "header" in json.loads(next(self.lines[-1]))
        return answer

    def engines(self) -> list[psutil.Process]:
        below = psutil.Process(self.process.pid).children()
        return [child for child in below if "stockfish" in command(child)]

    def interrupt(self) -> tuple[int, list[str]]:
        """Send Ctrl-C; return the exit status and the lines since the address."""
        self.process.send_signal(signal.SIGINT)
        code = self.process.wait(120)
        return code, drop_slow_lines(self.output.read()).splitlines()


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return a PATH on which a pretended Stockfish comes first."""
    folder = tmp_path_factory.mktemp("bin")
    (folder / "stockfish").write_text(f"#!{sys.executable}\n{STOCKFISH}")
    (folder / "stockfish").chmod(0o755)
    return f"{folder}:{os.environ['PATH']}"


@contextmanager
def serving(path: str) -> Iterator[Board]:
    words = [sys.executable, "-m", "pipeline", "play", "--port", "0"]
    environment = os.environ | {"PATH": path, "PYTHONPATH": str(REPOSITORY)}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    with forked.Popen(words, cwd=REPOSITORY, env=environment, text=True, **pipes) as process:
        try:
            line = process.stdout.readline()
            while not (address := re.search(r"http://[0-9.:]+", line)):
                assert line
                line = process.stdout.readline()
            yield Board(process, address[0], process.stdout)
        finally:
            process.kill()


def test_reviews_end_with_their_clients_and_ctrl_c_says_one_line(path: str) -> None:
    with serving(path) as board:
        reviews = [board.begin_review() for _ in range(REVIEWS + 2)]
        until(lambda: len(board.engines()) == REVIEWS)
        assert board.post("play", network="embedded", moves=["e4"]).ok
        assert len(board.engines()) == REVIEWS
        for review in reviews:
            review.close()
        until(lambda: not board.engines())
        leave_within_a_request(board.url)
        with board.begin_review():
            until(board.engines)
            code, lines = board.interrupt()
        assert (code, len(lines)) == (130, 1), lines
        assert "interrupted" in lines[0]


def leave_within_a_request(url: str) -> None:
    """Send half of a request's body and go."""
    host, _, port = url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port))) as client:
        head = "POST /api/play HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        client.sendall(f"{head}Content-Length: 999\r\n\r\n{{".encode())
        time.sleep(0.2)


def test_short_requests_go_before_steps_of_reviews() -> None:
    turns, order, waiting = Turns(), [], []

    def work(name: str, is_short: bool) -> None:
        with turns.take(is_short=is_short):
            order.append(name)

    with turns.take(is_short=False):
        for name in ("review", "another review", "move"):
            waiting.append(threading.Thread(target=work, args=(name, name == "move")))
            waiting[-1].start()
        until(lambda: turns._short)
    for thread in waiting:
        thread.join()
    assert order[0] == "move"
    assert len(order) == 3


@pytest.mark.parametrize("port", [-1, 65_536, 80_000])
def test_a_port_that_there_is_not_is_refused(port: int) -> None:
    with pytest.raises(UserError, match=rf"port {port}.*65535.*--port"):
        serve(Networks(), port)


def test_a_port_that_is_taken_is_refused_even_while_the_other_server_starts() -> None:
    with listen(0, "--port") as listener:
        port = listener.getsockname()[1]
        with pytest.raises(UserError, match=f"port {port}.*in use.*--port"):
            serve(Networks(), port)


@pytest.mark.slow
@pytest.mark.serial
def test_a_move_waits_for_no_more_than_a_step_of_twelve_reviews(path: str) -> None:
    with serving(path) as board:

        def move() -> float:
            begin = time.perf_counter()
            assert board.post("play", network="embedded", moves=["e4"], style="human").ok
            return time.perf_counter() - begin

        alone = [move() for _ in range(15)]
        reviews = [board.begin_review() for _ in range(12)]
        until(lambda: len(board.engines()) == REVIEWS)
        beside = [move() for _ in range(15)]
        for review in reviews:
            review.close()
    for name, seconds in (("alone", alone), ("beside twelve reviews", beside)):
        print(f"{name}: median {statistics.median(seconds):.3f} s, most {max(seconds):.3f} s")  # noqa: T201
    assert statistics.median(beside) < 10 * statistics.median(alone) + 0.3


ODD = [
    "",
    "e4",
    [],
    ["e4"],
    ["e9"],
    {},
    None,
    -1,
    0,
    1e300,
    True,
    "\x00",
    "♘f3",
    "9" * 5000,
    LONG_GAME,
    [[[]]],
]
"""Values of a request's fields that may be of any wrong kind."""
FIELDS = (
    "start",
    "moves",
    "at",
    "network",
    "tags",
    "style",
    "rating",
    "clock",
    "pgn",
    "white",
    "source",
    "x",
)


@pytest.mark.slow
def test_five_hundred_odd_requests_and_leaving_clients_bring_no_internal_error(path: str) -> None:
    rng = random.Random(1)
    with serving(path) as board:
        for number in range(500):
            body = {field: rng.choice(ODD) for field in rng.sample(FIELDS, rng.randrange(6))}
            text = json.dumps({"network": "embedded", **body} if number % 2 else body).encode()
            data = text if number % 5 else text[: rng.randrange(len(text))] + rng.randbytes(5)
            name = rng.choice(["state", "play", "ask", "save", "review", "networks", "none"])
            kind = rng.choice(["application/json", "application/json; x", "text/plain", ""])
            with requests.request(
                rng.choice(["POST", "POST", "POST", "GET", "PUT"]),
                f"{board.url}/api/{name}",
                data=data,
                headers={"Content-Type": kind},
                stream=True,
                timeout=300,
            ) as answer:
                assert answer.status_code < 500, (name, data)
            if number % 10 == 0:
                leave_within_a_request(board.url)
        until(lambda: not board.engines())
        code, lines = board.interrupt()
    assert (code, len(lines)) == (130, 1), lines


@pytest.mark.slow
def test_twenty_ctrl_cs_at_random_moments_say_one_line_each(path: str) -> None:
    rng = random.Random(2)
    for _ in range(20):
        with serving(path) as board:
            stopped = threading.Event()

            def ask(board: Board = board, stopped: threading.Event = stopped) -> None:
                with suppress(requests.RequestException):
                    while not stopped.is_set():
                        board.post("play", network="embedded", moves=["e4"], style="human")

            clients = [threading.Thread(target=ask) for _ in range(2)]
            for client in clients:
                client.start()
            with suppress(requests.RequestException, StopIteration):
                reviews = [board.begin_review() for _ in range(rng.randrange(4))]
            time.sleep(rng.random())
            code, lines = board.interrupt()
            stopped.set()
            for client in clients:
                client.join()
            del reviews
        assert (code, len(lines)) == (130, 1), lines
