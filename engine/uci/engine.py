"""The engine as a process: one thread reads commands, one thinks; neither ever waits long for the other.

Commands take effect at once or are queued for the thinking thread; only `stop` and `ponderhit` act on a running search.
`quit` and the end of the input wait for the last answer, even while the network is still loading or compiling, so every `go`
is answered. They stop a search without limits.
"""

import queue
import threading
import time
from collections.abc import Callable, Iterator
from typing import BinaryIO

from engine.errors import UserError
from engine.evaluation.evaluator import Evaluator
from engine.evaluation.handwritten import evaluate
from engine.jit_cache import are_compiled
from engine.search.clock import warm_up
from engine.uci.commands import parse_go, parse_option, parse_position, quote, split
from engine.uci.job import Job
from engine.uci.options import Options, describe_options, set_option
from engine.uci.position import GameState
from engine.uci.thinking import Thinker

LONGEST_LINE = 1 << 20
"""Longest line that is read, bytes; the longest game takes 40,000."""
PATIENCE = 2.0
"""Seconds to wait for the search to end after the output was closed."""
POLL_SECONDS = 0.02
"""Seconds between checks for a closed output while waiting for the last answer."""
COMPILING = "info string compiling kernels (once on this machine, about a minute)"

Load = Callable[[str | None, int], Evaluator]
"""(checkpoint's directory or None for the default player, threads) -> evaluator.

Called in the thread that will use the evaluator; raises UserError."""


class LoadError(UserError):
    """An evaluator that could not be loaded."""


class Engine:
    """The protocol's state: options, game, and the `go` that is being answered."""

    def __init__(
        self,
        load: Load,
        write: Callable[[str], None],
        *,
        options: Options | None = None,
        name: str = "Fianchetto",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Answer by `write`, which takes a line and its newline; `clock` returns the time in seconds."""
        self._load, self._write, self._name = load, write, name
        self._defaults = self._options = options or Options()
        self._game = GameState()
        self._job: Job | None = None
        self._tasks: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._loaded = threading.Event()
        self._failure: UserError | None = None
        self._position_seconds = 0.0
        self._cold = False
        self._speaking = threading.Lock()
        self._gone: BrokenPipeError | None = None
        self._clock = clock
        self._thinker = Thinker(self._say, clock=clock)
        self._commands: dict[str, Callable[[str], None]] = {
            "uci": self._uci,
            "isready": self._isready,
            "ucinewgame": self._ucinewgame,
            "position": self._position,
            "stop": self._stop,
            "ponderhit": self._ponderhit,
            "setoption": self._setoption,
            "debug": self._debug,
            "register": lambda rest: None,
        }
        self._thread = threading.Thread(target=self._work, name="thinking", daemon=True)

    def serve(self, lines: BinaryIO) -> None:
        """Follow the commands until `quit` or the end of them.

        Raises LoadError when no player can be loaded, and BrokenPipeError when the output is closed.
        """
        self._cold = not are_compiled("simulate")
        threading.Thread(target=warm_up, args=(evaluate,), name="kernels", daemon=True).start()  # beside torch's import
        self._thread.start()
        self._submit_load()
        try:
            for line in _lines_of(lines):
                if line is None:
                    self._say(f"info string a line of more than {LONGEST_LINE} bytes is skipped")
                elif not self._follow(line) or self._gone:
                    break
            self._finish()
        finally:
            self._shut_down()
        if self._gone:
            raise self._gone

    def _follow(self, line: str) -> bool:
        """Execute a line; False for `quit`. An error is reported, and the engine goes on."""
        begun = self._clock()
        try:
            command, rest = split(line)
            if command == "quit":
                return False
            if command == "go":
                self._go(rest, begun - self._position_seconds)
            elif command:
                self._commands[command](rest)
        except LoadError:
            raise
        except UserError as error:
            self._say(f"info string {error}")
            command = ""
        self._position_seconds = self._clock() - begun if command == "position" else 0.0
        return True

    def _uci(self, rest: str) -> None:
        self._say(f"id name {self._name}")
        self._say("id author the Fianchetto authors")
        for line in describe_options(self._defaults):
            self._say(line)
        self._say("uciok")

    def _isready(self, rest: str) -> None:
        if self._job is None or self._job.answered:
            self._report_compiling()
            self._loaded.wait()
            self._raise_failure()
        self._say("readyok")

    def _ucinewgame(self, rest: str) -> None:
        self._game = GameState()
        self._tasks.put(self._thinker.forget)

    def _position(self, rest: str) -> None:
        wrong = self._game.update(*parse_position(rest))
        if wrong:
            self._say(f"info string {wrong}")

    def _go(self, rest: str, begun: float) -> None:
        """Queue a `go` that came at time `begun`; a running one is answered first, so each has its answer."""
        go = parse_go(rest)
        for problem in go.problems:
            self._say(f"info string {problem}")
        if self._loaded.is_set():
            self._raise_failure()
        self._report_compiling()
        if self._job is not None and not self._job.answered:
            self._say("info string go while thinking: the search before it is stopped")
            self._job.stop()
        job = self._job = Job(go, self._options, self._game.board.copy(), self._game.start, begun)

        def think() -> None:
            try:
                self._thinker.think(job)
            finally:
                job.over.set()

        self._tasks.put(think)

    def _stop(self, rest: str) -> None:
        if self._job is not None:
            self._job.stop()

    def _ponderhit(self, rest: str) -> None:
        if self._job is not None and self._job.pondering:
            self._job.ponderhit(self._clock())

    def _setoption(self, rest: str) -> None:
        """Set an option for the next `go`; a running search keeps its options."""
        name, value = parse_option(rest)
        before = self._options
        self._options = set_option(before, name, value)
        if _loaded(self._options) != _loaded(before):
            self._submit_load()

    def _debug(self, rest: str) -> None:
        self._thinker.debug = rest != "off"

    def _submit_load(self) -> None:
        checkpoint, threads = _loaded(self._options)
        done = self._loaded = threading.Event()

        def load() -> None:
            try:
                self._thinker.use(self._load(checkpoint or None, threads))
                self._failure = None
            except Exception as error:  # noqa: BLE001 - the GUI must see any error of a checkpoint
                self._report_failure(checkpoint, error)
            finally:
                done.set()

        self._tasks.put(load)

    def _report_failure(self, checkpoint: str, error: Exception) -> None:
        reason = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {quote(str(error), 300)}"
        if self._thinker.evaluator is None:
            self._failure = LoadError(reason)
        else:
            self._say(f"info string {quote(checkpoint)} is not played with: {reason}")

    def _report_compiling(self) -> None:
        """Report once that kernels are being compiled, or the engine would seem to hang."""
        if self._cold and not self._loaded.is_set():
            self._say(COMPILING)
        self._cold = False

    def _raise_failure(self) -> None:
        if self._failure is not None:
            self._say(f"info string {self._failure}")
            raise self._failure

    def _say(self, line: str) -> None:
        """Write a whole line, from either thread; once the output is closed, nothing more is written."""
        with self._speaking:
            if self._gone is None:
                try:
                    self._write(line + "\n")
                except BrokenPipeError as error:
                    self._gone = error

    def _work(self) -> None:
        for task in iter(self._tasks.get, None):
            task()

    def _finish(self) -> None:
        """Wait until the last `go` is answered or the output is closed; a search without an end is stopped."""
        if self._job is None:
            return
        if not self._job.is_bounded:
            self._job.stop()
        while not self._job.over.wait(POLL_SECONDS) and not self._gone:
            pass
        self._raise_failure()

    def _shut_down(self) -> None:
        """End the thinking thread; loading or compiling is not waited for."""
        self._tasks.put(None)
        if self._job is not None and not self._job.answered:
            self._job.stop()
            self._thread.join(PATIENCE)


def _loaded(options: Options) -> tuple[str, int]:
    """Return the options that an evaluator is loaded with."""
    return options.checkpoint, options.usable_threads


def _lines_of(stream: BinaryIO) -> Iterator[str | None]:
    """Yield the lines of a stream of bytes, whatever they hold; None for one that is too long."""
    too_long = False
    while piece := stream.readline(LONGEST_LINE):
        whole = piece.endswith(b"\n") or len(piece) < LONGEST_LINE
        if too_long or not whole:
            if not too_long:
                yield None
            too_long = not whole
            continue
        yield piece.decode("utf-8", errors="replace")
