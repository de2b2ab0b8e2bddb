"""Talk to the UCI engine as a GUI does; the engine runs in a thread of this process."""

import os
import queue
import re
import threading
import time
from contextlib import suppress

import numpy as np
from numpy.typing import NDArray

from engine.evaluation.evaluator import Evaluator, uniform
from engine.uci import Engine, Load
from tests.waiting import HANG_TIMEOUT_SECONDS


class FakeClock:
    """Clock that only evaluations advance, so that no search depends on the machine's speed."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Counting:
    """Evaluator on a fake clock that counts batches, and blocks or fails when told to."""

    def __init__(self, seconds: float = 0.0, evaluator: Evaluator = uniform) -> None:
        """Create the evaluator; each batch advances the clock by `seconds`."""
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
            assert self._released.wait(HANG_TIMEOUT_SECONDS)
        if self.broken:
            raise RuntimeError("out of\nmemory")
        return self.evaluator(planes_BP)

    def hold_after(self, batches: int) -> None:
        """Block in the last of the next `batches` batches until `release` is called."""
        self._held.clear()
        self._released.clear()
        self._hold_after = len(self.batches) + batches

    def wait_until_held(self) -> None:
        """Wait until the evaluator is blocked: a round is running, and the clock stands still."""
        assert self._held.wait(HANG_TIMEOUT_SECONDS)

    def release(self) -> None:
        """Unblock the evaluator."""
        self._released.set()


class Talk:
    """Conversation with an engine, in a `with` block; it begins when the engine is ready."""

    def __init__(
        self, evaluator: Evaluator = uniform, *, load: Load | None = None, ready: bool = True
    ) -> None:
        reader, writer = os.pipe()
        self._input, self._output = os.fdopen(reader, "rb"), os.fdopen(writer, "wb", buffering=0)
        self._received: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.engine = Engine(
            load or (lambda checkpoint, threads: evaluator),
            lambda text: self._received.put(text.rstrip("\n")),
            clock=getattr(evaluator, "clock", None) or time.monotonic,
        )
        self.error: Exception | None = None
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._ready = ready

    def _serve(self) -> None:
        try:
            self.engine.serve(self._input)
        except Exception as error:  # noqa: BLE001 - tests read it
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
        self._thread.join(HANG_TIMEOUT_SECONDS)
        assert not self._thread.is_alive(), "the engine must end when its input ends"

    def until(self, start: str) -> list[str]:
        """Return the engine's lines up to the first that begins with `start`."""
        lines = [self._received.get(timeout=HANG_TIMEOUT_SECONDS)]
        while not lines[-1].startswith(start):
            lines.append(self._received.get(timeout=HANG_TIMEOUT_SECONDS))
        return lines

    def drain(self) -> list[str]:
        """Return the lines that are waiting to be read."""
        lines = []
        with suppress(queue.Empty):
            while True:
                lines.append(self._received.get_nowait())
        return lines

    def sync(self, *lines: str) -> list[str]:
        """Send lines, and return what the engine writes until it has processed them."""
        self.say(*lines, "isready")
        return self.until("readyok")[:-1]

    def ask(self, *lines: str) -> list[str]:
        """Send lines that end with a `go`, and return the engine's lines up to `bestmove`."""
        self.say(*lines)
        return self.until("bestmove")

    def best(self, *lines: str) -> str:
        """Send lines that end with a `go`, and return its move."""
        return self.ask(*lines)[-1].split()[1]

    def complaint(self, line: str | bytes) -> str:
        """Send an invalid line, and return the text of its only answer, an `info string`."""
        self.say(line)
        (answer,) = self.sync()
        assert answer.startswith("info string ")
        return answer.removeprefix("info string ")


def words_of(info: str) -> dict[str, str]:
    """Parse the fields of an info line."""
    names = "depth|seldepth|nodes|nps|time|multipv|hashfull|score|wdl|pv"
    return dict(re.findall(rf"\b({names}) (.+?)(?= (?:{names}) |$)", info))


def last_info(lines: list[str]) -> dict[str, str]:
    """Parse the last info line of a search."""
    return words_of([line for line in lines if line.startswith("info depth")][-1])
