"""A GUI for the tests: the engine's loop in a thread of this process, words in through a pipe, answers out of a queue."""

import os
import queue
import threading
import time
from types import TracebackType

import numpy as np
from numpy.typing import NDArray

from engine.evaluation.evaluator import Evaluator, uniform
from engine.uci import Engine, Load

PATIENCE = 60.0
"""Seconds that an answer may take before a test fails."""
FIRST_PATIENCE = 500.0
"""Seconds that the engine may take to be ready: its kernels may have to be compiled first."""


class StillClock:
    """A clock that only evaluations move on, so that what is searched in some time is the same on every machine."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Counting:
    """A uniform evaluator that counts what it is asked, waits as long as it is told and breaks when it is told."""

    def __init__(self, seconds: float = 0.0, clock: StillClock | None = None) -> None:
        self.rows = 0
        self.clock = clock
        self.seconds = seconds
        self.broken = False
        self.batches: list[int] = []

    def __call__(self, planes_BP: NDArray[np.uint64]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        self.rows += len(planes_BP)
        self.batches.append(len(planes_BP))
        if self.clock is not None:
            self.clock.now += self.seconds
        else:
            time.sleep(self.seconds)
        if self.broken:
            raise RuntimeError("out of\nmemory")
        return uniform(planes_BP)


class Talk:
    """A conversation; `with` begins it, waits until the engine is ready and ends it."""

    def __init__(self, evaluator: Evaluator = uniform, *, load: Load | None = None, ready: bool = True) -> None:
        reader, writer = os.pipe()
        self._input, self._output = os.fdopen(reader, "rb"), os.fdopen(writer, "wb", buffering=0)
        self._heard: queue.SimpleQueue[tuple[float, str]] = queue.SimpleQueue()
        self.engine = Engine(
            load or (lambda checkpoint, threads, rating: evaluator),
            lambda text: self._heard.put((time.monotonic(), text.rstrip("\n"))),
            clock=getattr(evaluator, "clock", None) or time.monotonic,
        )
        self.error: Exception | None = None
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._ready = ready
        self.heard_at = 0.0

    def _serve(self) -> None:
        try:
            self.engine.serve(self._input)
        except Exception as error:  # noqa: BLE001 - a test asks for it
            self.error = error

    def __enter__(self) -> "Talk":
        self._thread.start()
        if self._ready:
            self.say("isready")
            self.until("readyok", FIRST_PATIENCE)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._thread.is_alive():
            self.say("quit")
            self.end()

    def say(self, *lines: str | bytes) -> None:
        """Send lines."""
        for line in lines:
            self._output.write((line.encode() if isinstance(line, str) else line) + b"\n")

    def end(self) -> None:
        """Close the engine's input and wait for it to finish."""
        if not self._output.closed:
            self._output.close()
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive(), "the engine ends when its input does"

    def until(self, start: str, within: float = PATIENCE) -> list[str]:
        """Give what is heard up to and with the first line that starts so."""
        lines: list[str] = []
        ends = time.monotonic() + within
        while True:
            try:
                self.heard_at, line = self._heard.get(timeout=max(ends - time.monotonic(), 0.001))
            except queue.Empty:
                raise AssertionError(f"no {start!r} within {within} s; heard {lines}") from None
            lines.append(line)
            if line.startswith(start):
                return lines

    def rest(self, seconds: float = 0.0) -> list[str]:
        """Give what is heard within so many seconds, at least all that was said before."""
        lines = []
        ends = time.monotonic() + seconds
        while True:
            try:
                lines.append(self._heard.get(timeout=max(ends - time.monotonic(), 0.0))[1])
            except queue.Empty:
                return lines

    def ask(self, *lines: str, within: float = PATIENCE) -> list[str]:
        """Send lines that end in a `go` and give all up to its bestmove."""
        self.say(*lines)
        return self.until("bestmove", within)

    def best(self, *lines: str, within: float = PATIENCE) -> str:
        """Send lines that end in a `go` and give the move played."""
        return self.ask(*lines, within=within)[-1].split()[1]

    def complaint(self, line: str | bytes) -> str:
        """Send a line that is wrong and give the one `info string` that it gets."""
        self.say(line, "isready")
        heard = self.until("readyok")[:-1]
        assert len(heard) == 1, heard
        assert heard[0].startswith("info string "), heard
        return heard[0].removeprefix("info string ")


def words_of(info: str) -> dict[str, str]:
    """Read the single-word fields of an info line, and `score`, `wdl` and `pv` whole."""
    words = info.split()
    fields: dict[str, str] = {}
    for at, word in enumerate(words):
        if word == "pv":
            fields["pv"] = " ".join(words[at + 1 :])
            break
        if word == "wdl":
            fields["wdl"] = " ".join(words[at + 1 : at + 4])
        elif word == "score":
            fields["score"] = " ".join(words[at + 1 : at + 3])
        elif word in ("depth", "seldepth", "nodes", "nps", "time", "multipv", "hashfull"):
            fields[word] = words[at + 1]
    return fields


def last_info(lines: list[str]) -> dict[str, str]:
    """Read the last info line that tells of a search."""
    return words_of([line for line in lines if line.startswith("info depth")][-1])
