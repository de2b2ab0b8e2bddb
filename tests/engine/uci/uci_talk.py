"""A GUI for the tests: the engine's loop in a thread of this process, words in through a pipe,
answers out of a queue."""

import os
import queue
import threading
import time
from contextlib import suppress
from types import TracebackType

import numpy as np
from numpy.typing import NDArray

from engine.evaluation.evaluator import Evaluator, uniform
from engine.uci import Engine, Load
from tests.waiting import LONG

FIRST_PATIENCE = 500.0
"""Seconds that the engine may take to be ready: its kernels may have to be compiled first."""


class FakeClock:
    """A clock that only evaluations advance, so that a search in a given time is the same on every
    machine."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Counting:
    """An evaluator on a fake clock: it counts its batches, and blocks or breaks when a test asks
    for it."""

    def __init__(self, seconds: float = 0.0, evaluator: Evaluator = uniform) -> None:
        """Let every batch take `seconds` on the clock."""
        self.clock = FakeClock()
        self.evaluator = evaluator
        self.seconds = seconds
        self.broken = False
        self.rows = 0
        self.batches: list[int] = []
        self._held, self._released, self._hold_after = threading.Event(), threading.Event(), 0

    def __call__(
        self, planes_BP: NDArray[np.uint64], columns: object = None
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        self.rows += len(planes_BP)
        self.batches.append(len(planes_BP))
        self.clock.now += self.seconds
        if len(self.batches) == self._hold_after:
            self._held.set()
            assert self._released.wait(LONG)
        if self.broken:
            raise RuntimeError("out of\nmemory")
        return self.evaluator(planes_BP)

    def hold_after(self, batches: int) -> None:
        """Block within a batch, the last of so many from now on, until `release`."""
        self._held.clear()
        self._released.clear()
        self._hold_after = len(self.batches) + batches

    def wait_until_held(self) -> None:
        """Return when the evaluator is blocked: the search is within a round and the clock stands
        still."""
        assert self._held.wait(LONG)

    def release(self) -> None:
        """Let the held batch go on."""
        self._released.set()


class Talk:
    """A conversation; `with` begins it, waits until the engine is ready and ends it."""

    def __init__(
        self, evaluator: Evaluator = uniform, *, load: Load | None = None, ready: bool = True
    ) -> None:
        reader, writer = os.pipe()
        self._input, self._output = os.fdopen(reader, "rb"), os.fdopen(writer, "wb", buffering=0)
        self._heard: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.engine = Engine(
            load or (lambda checkpoint, threads: evaluator),
            lambda text: self._heard.put(text.rstrip("\n")),
            clock=getattr(evaluator, "clock", None) or time.monotonic,
        )
        self.error: Exception | None = None
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._ready = ready

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
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
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
        self._thread.join(LONG)
        assert not self._thread.is_alive(), "the engine ends when its input does"

    def until(self, start: str, within: float = LONG) -> list[str]:
        """Give what is heard up to and with the first line that starts so."""
        lines: list[str] = []
        ends = time.monotonic() + within
        while True:
            try:
                line = self._heard.get(timeout=max(ends - time.monotonic(), 0.001))
            except queue.Empty:
                raise AssertionError(f"no {start!r} within {within} s; heard {lines}") from None
            lines.append(line)
            if line.startswith(start):
                return lines

    def drain(self) -> list[str]:
        """Return what the engine has said and nobody has taken yet, without waiting."""
        lines = []
        with suppress(queue.Empty):
            while True:
                lines.append(self._heard.get_nowait())
        return lines

    def sync(self, *lines: str) -> list[str]:
        """Send lines, wait until the engine has followed them all, and return what it said up to
        then."""
        self.say(*lines, "isready")
        return self.until("readyok")[:-1]

    def ask(self, *lines: str) -> list[str]:
        """Send lines that end in a `go` and give all up to its bestmove."""
        self.say(*lines)
        return self.until("bestmove")

    def best(self, *lines: str) -> str:
        """Send lines that end in a `go` and give the move played."""
        return self.ask(*lines)[-1].split()[1]

    def complaint(self, line: str | bytes) -> str:
        """Send a line that is wrong and give the one `info string` that it gets."""
        self.say(line)
        heard = self.sync()
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
