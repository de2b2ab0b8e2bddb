"""The engine's two threads: one reads commands, one thinks; neither blocks the other.

Commands take effect at once or are queued for the thinking thread. Only `stop` and `ponderhit` act
on a running search. `quit` and the end of input wait until the last `go` is answered, even while
the network is loading or compiling; they stop a search without limits. The end of input also waits
for a pending `readyok`.
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
from engine.player.player import Player, warm_up
from engine.uci import commands
from engine.uci.commands import GameState, quote
from engine.uci.job import Job
from engine.uci.options import Options, describe_options, set_option

MAX_LINE_BYTES = 1 << 20
"""Maximum length of an input line, bytes; the longest game takes 40,000."""
SHUTDOWN_SECONDS = 2.0
"""Seconds to wait for a running search to end at shutdown."""
POLL_SECONDS = 0.02
"""Seconds between checks for a closed output while waiting for the last answer."""
COMPILING = "compiling kernels (once on this machine, about a minute)"

Load = Callable[[str | None, int], Evaluator]
"""(checkpoint directory or None for the default, threads) -> evaluator; raises UserError."""


class LoadError(UserError):
    """The evaluator could not be loaded."""


class Engine:
    """State of the protocol: options, game and current `go`."""

    def __init__(
        self,
        load: Load,
        write: Callable[[str], None],
        *,
        options: Options | None = None,
        name: str = "Fianchetto",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Create an engine; `write` gets lines with newlines, `clock` returns seconds."""
        self._load, self._write, self._name = load, write, name
        self._defaults = self._options = options or Options()
        self._game = GameState()
        self._job: Job | None = None
        self._tasks: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._loaded = threading.Event()
        self._failure: LoadError | None = None
        """Error of the first load; None if there is a player."""
        self._ended = threading.Event()
        self._quit = False
        self._ready = threading.Event()
        """Set unless an `isready` is waiting for the player."""
        self._ready.set()
        self._error: Exception | None = None
        """Error that ends the engine before `quit`."""
        self._cold = False
        self._speaking = threading.Lock()
        self._gone: BrokenPipeError | None = None
        self._clock = clock
        self._player: Player | None = None
        self._debugging = False
        self._thread = threading.Thread(target=self._work, name="thinking", daemon=True)

    def serve(self, lines: BinaryIO) -> None:
        """Process commands until `quit` or the end of input.

        Raises LoadError if no player can be loaded, and BrokenPipeError if the output is closed.
        """
        self._cold = not are_compiled("puct")
        # in parallel with torch's import
        threading.Thread(target=warm_up, args=(evaluate,), name="kernels", daemon=True).start()
        self._thread.start()
        self._submit_load()
        threading.Thread(target=self._read, args=(lines,), name="reading", daemon=True).start()
        try:
            self._ended.wait()
            if self._error is None:
                self._finish()
        finally:
            self._shut_down()
        if self._error or self._gone:
            raise self._error or self._gone  # type: ignore[misc]

    def _read(self, lines: BinaryIO) -> None:
        """Process commands until `quit`, the end of input, or the end of the engine."""
        try:
            for line in _lines_of(lines):
                if line is None:
                    self._game.drop_position()  # the line may have been a `position`
                    self._note(f"skipped a line of more than {MAX_LINE_BYTES} bytes")
                elif not self._follow(line):
                    self._quit = True
                    break
                elif self._gone:
                    break
        except Exception as error:  # noqa: BLE001 - `serve` raises it
            self._error = error
        finally:
            self._ended.set()

    def _follow(self, line: str) -> bool:
        """Execute a line and report its errors; return False for `quit`."""
        try:
            command, rest = commands.split(line)
            if command == "quit":
                return False
            if command:
                getattr(self, f"_{command}")(rest)
        except UserError as error:
            self._note(str(error))
        return True

    def _uci(self, rest: str) -> None:
        author = "id author the Fianchetto authors"
        options = describe_options(self._defaults)
        for line in (f"id name {self._name}", author, *options, "uciok"):
            self._say(line)

    def _isready(self, rest: str) -> None:
        """Answer once the player is loaded, without blocking the next commands."""
        if self._loaded.is_set() or (self._job is not None and not self._job.answered):
            self._say_ready()
        else:
            self._report_compiling()
            self._ready.clear()
            self._tasks.put(self._say_ready)

    def _say_ready(self) -> None:
        if self._failure is None:
            self._say("readyok")
        else:
            self._end(self._failure)
        self._ready.set()

    def _ucinewgame(self, rest: str) -> None:
        self._game = GameState()
        self._tasks.put(self._forget)

    def _forget(self) -> None:
        if self._player is not None:
            self._player.forget()

    def _position(self, rest: str) -> None:
        try:
            note = self._game.update(*commands.parse_position(rest))
        except UserError:
            self._game.drop_position()
            raise
        if note:
            self._note(note)

    def _go(self, rest: str) -> None:
        """Queue a `go`, and stop a running one, which is answered first."""
        begun, go = self._clock(), commands.parse_go(rest)
        for problem in go.problems:
            self._note(problem)
        self._report_compiling()
        if self._job is not None and not self._job.answered:
            self._note("go while thinking: the previous search is stopped")
            self._job.stop()
        board = self._game.board and self._game.board.copy()
        base = self._game.record_clock(go)
        job = self._job = Job(go, self._options, board, base, begun, self._say, self._clock)

        def think() -> None:
            try:
                if self._player is None:
                    self._end(self._failure)
                else:
                    job.answer(self._player, self._debugging)
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
        """Set an option from the next `go` on."""
        name, value = commands.parse_option(rest)
        before = self._options
        self._options = set_option(before, name, value)
        if _loaded(self._options) != _loaded(before):
            self._submit_load()

    def _debug(self, rest: str) -> None:
        self._debugging = rest != "off"

    def _register(self, rest: str) -> None:
        """Accept any registration."""

    def _submit_load(self) -> None:
        checkpoint, threads = _loaded(self._options)
        done = self._loaded = threading.Event()

        def load() -> None:
            try:
                evaluator = self._load(checkpoint or None, threads)
                player = Player(evaluator, clock=self._clock, note=self._note)
                player.prepare()
                self._player, self._failure = player, None
            except Exception as error:  # noqa: BLE001 - `serve` raises it
                self._report_failure(checkpoint, error)
            finally:
                done.set()

        self._tasks.put(load)

    def _report_failure(self, checkpoint: str, error: Exception) -> None:
        reason = str(error)
        if not isinstance(error, UserError):
            reason = f"{type(error).__name__}: {quote(reason, 300)}"
        if self._player is None:
            self._failure = LoadError(reason)
        else:
            self._note(f"{quote(checkpoint)} cannot be loaded: {reason}")

    def _report_compiling(self) -> None:
        """Report once that kernels are being compiled, which takes a minute or two."""
        if self._cold and not self._loaded.is_set():
            self._note(COMPILING)
        self._cold = False

    def _note(self, text: str) -> None:
        self._say(f"info string {text}")

    def _end(self, failure: LoadError | None) -> None:
        """End the engine because no player could be loaded."""
        self._note(str(failure))
        self._error = failure
        self._ended.set()

    def _say(self, line: str) -> None:
        """Write one line, unless the output is closed; thread-safe."""
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
        """Wait until the last `go` is answered or the output is closed; stop infinite searches."""
        while not (self._quit or self._ready.wait(POLL_SECONDS) or self._gone):
            pass
        if self._job is not None and not self._job.is_bounded:
            self._job.stop()
        while not (self._job is None or self._job.over.wait(POLL_SECONDS) or self._gone):
            pass

    def _shut_down(self) -> None:
        """Stop the search thread, but do not wait for it while it loads or compiles."""
        self._tasks.put(None)
        if self._job is not None and not self._job.answered:
            self._job.stop()
            self._thread.join(SHUTDOWN_SECONDS)


def _loaded(options: Options) -> tuple[str, int]:
    """Return the options whose change requires loading the evaluator again."""
    return options.checkpoint, options.usable_threads


def _lines_of(stream: BinaryIO) -> Iterator[str | None]:
    """Yield the decoded lines of a byte stream; None for a line that is too long."""
    too_long = False
    while piece := stream.readline(MAX_LINE_BYTES):
        whole = piece.endswith(b"\n") or len(piece) < MAX_LINE_BYTES
        if whole and not too_long:
            yield piece.decode("utf-8", errors="replace")
        elif not too_long:
            yield None
        too_long = not whole
