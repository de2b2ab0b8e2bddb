"""A GUI for the tests: the engine runs in a thread of this process."""

import os
import queue
import threading
import time
from contextlib import suppress

import numpy as np
from numpy.typing import NDArray

from engine.evaluation.evaluator import Evaluator, uniform
from engine.uci import Engine, Load
from tests.waiting import LONG


class FakeClock:
    """A clock that only evaluations advance, so that a search is the same on every machine."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Counting:
    """An evaluator on a fake clock; it counts batches, and blocks or breaks when asked to."""

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
        """Return when the evaluator is blocked: a round is under way and the clock stands still."""
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
            self.until("readyok")
        return self

    def __exit__(self, *error: object) -> None:
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

    def until(self, start: str) -> list[str]:
        """Give what is heard up to and with the first line that starts so."""
        lines = [self._heard.get(timeout=LONG)]
        while not lines[-1].startswith(start):
            lines.append(self._heard.get(timeout=LONG))
        return lines

    def drain(self) -> list[str]:
        """Return what the engine has said and nobody has taken yet, without waiting."""
        lines = []
        with suppress(queue.Empty):
            while True:
                lines.append(self._heard.get_nowait())
        return lines

    def sync(self, *lines: str) -> list[str]:
        """Send lines, and return what the engine says until it has followed them all."""
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
        (heard,) = self.sync()
        assert heard.startswith("info string ")
        return heard.removeprefix("info string ")


def words_of(info: str) -> dict[str, str]:
    """Read the single-word fields of an info line, and `score`, `wdl` and `pv` whole."""
    info, _, variation = info.partition(" pv ")
    words, fields = info.split(), {"pv": variation} if variation else {}
    lengths = {"wdl": 3, "score": 2}
    lengths |= dict.fromkeys(
        ("depth", "seldepth", "nodes", "nps", "time", "multipv", "hashfull"), 1
    )
    for at, word in enumerate(words):
        if word in lengths:
            fields[word] = " ".join(words[at + 1 : at + 1 + lengths[word]])
    return fields


def last_info(lines: list[str]) -> dict[str, str]:
    """Read the last info line that tells of a search."""
    return words_of([line for line in lines if line.startswith("info depth")][-1])
