"""Run the UCI engine in two threads: one reads commands, the other loads networks and searches.

Commands take effect at once or are queued for the thinking thread. Only `stop` and `ponderhit` act
on a running search. After `quit` or the end of input, the engine ends when the last `go` is
answered, even if the network is still loading or compiling; a search without limits is stopped. At
the end of input, it also waits for a pending `readyok`.
"""

import queue
import threading
import time
from collections.abc import Callable, Iterator
from typing import BinaryIO

from engine.compiling import COMPILING_MESSAGE
from engine.errors import UserError
from engine.evaluation.evaluator import Evaluator
from engine.evaluation.handwritten import evaluate
from engine.jit_cache import has_compiled_kernels
from engine.player.player import Player, warm_up
from engine.uci import commands
from engine.uci.commands import GameState, quote
from engine.uci.job import GoJob
from engine.uci.options import Options, describe_options, set_option

MAX_LINE_BYTES = 1 << 20
"""Maximum length of an input line; the longest possible game takes 40,000 bytes."""
SHUTDOWN_SECONDS = 2.0
"""Maximum time that a running search has to end at shutdown."""
POLL_SECONDS = 0.02
"""Interval of checks for a closed output while the engine waits for the last answer."""

Load = Callable[[str | None, int], Evaluator]
"""(checkpoint directory or None for the default, threads) -> evaluator; raises UserError."""


class LoadError(UserError):
    """The evaluator could not be loaded."""


class Engine:
    """UCI engine: the state of the protocol, and its two threads."""

    def __init__(
        self,
        load: Load,
        write: Callable[[str], None],
        *,
        options: Options | None = None,
        name: str = "Fianchetto",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Create an engine; `write` gets lines with newlines, and `clock` returns seconds."""
        self._load, self._write, self._name = load, write, name
        self._defaults = self._options = options or Options()
        self._game = GameState()
        self._go_job: GoJob | None = None
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
        self._must_compile = False
        """Whether kernels are not cached and this has not been reported yet."""
        self._write_lock = threading.Lock()
        self._output_error: BrokenPipeError | None = None
        """Error of the first write after the output was closed."""
        self._clock = clock
        self._player: Player | None = None
        self._debugging = False
        self._thread = threading.Thread(target=self._run_tasks, name="thinking", daemon=True)

    def serve(self, lines: BinaryIO) -> None:
        """Process commands until `quit` or the end of input.

        Raises LoadError if no player can be loaded, and BrokenPipeError if the output is closed.
        """
        self._must_compile = not has_compiled_kernels("puct")
        # load kernels while another thread imports torch
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
        if self._error or self._output_error:
            raise self._error or self._output_error  # type: ignore[misc]

    def _read(self, lines: BinaryIO) -> None:
        """Process commands until `quit`, the end of input, or the end of the engine."""
        try:
            for line in _read_lines(lines):
                if line is None:
                    self._game.drop_position()  # the skipped line may have been a `position`
                    self._note(f"skipped a line of more than {MAX_LINE_BYTES} bytes")
                elif not self._execute_line(line):
                    self._quit = True
                    break
                elif self._output_error:
                    break
        except Exception as error:  # noqa: BLE001 - `serve` raises it
            self._error = error
        finally:
            self._ended.set()

    def _execute_line(self, line: str) -> bool:
        """Execute a line, and report an error as an `info string`; return False for `quit`."""
        try:
            command, arguments = commands.split_command(line)
            if command == "quit":
                return False
            if command:
                getattr(self, f"_{command}")(arguments)
        except UserError as error:
            self._note(str(error))
        return True

    def _uci(self, arguments: str) -> None:
        author = "id author the Fianchetto authors"
        options = describe_options(self._defaults)
        for line in (f"id name {self._name}", author, *options, "uciok"):
            self._write_line(line)

    def _isready(self, arguments: str) -> None:
        """Answer at once during a search, else once the player is loaded; never block commands."""
        if self._loaded.is_set() or (self._go_job is not None and not self._go_job.answered):
            self._write_ready()
        else:
            self._report_compiling()
            self._ready.clear()
            self._tasks.put(self._write_ready)

    def _write_ready(self) -> None:
        if self._failure is None:
            self._write_line("readyok")
        else:
            self._end_with(self._failure)
        self._ready.set()

    def _ucinewgame(self, arguments: str) -> None:
        self._game = GameState()
        self._tasks.put(self._forget)

    def _forget(self) -> None:
        if self._player is not None:
            self._player.forget()

    def _position(self, arguments: str) -> None:
        try:
            note = self._game.update(*commands.parse_position(arguments))
        except UserError:
            self._game.drop_position()
            raise
        if note:
            self._note(note)

    def _go(self, arguments: str) -> None:
        """Queue a `go`; stop a running one, which is answered before."""
        start_time, go = self._clock(), commands.parse_go(arguments)
        for problem in go.problems:
            self._note(problem)
        self._report_compiling()
        if self._go_job is not None and not self._go_job.answered:
            self._note("go while thinking: the previous search is stopped")
            self._go_job.stop()
        board = self._game.board and self._game.board.copy()
        base = self._game.estimate_base_time(go)
        job = self._go_job = GoJob(
            go, self._options, board, base, start_time, self._write_line, self._clock
        )

        def think() -> None:
            try:
                if self._player is None:
                    self._end_with(self._failure)
                else:
                    job.answer(self._player, self._debugging)
            finally:
                job.finished.set()

        self._tasks.put(think)

    def _stop(self, arguments: str) -> None:
        if self._go_job is not None:
            self._go_job.stop()

    def _ponderhit(self, arguments: str) -> None:
        if self._go_job is not None and self._go_job.pondering:
            self._go_job.ponderhit(self._clock())

    def _setoption(self, arguments: str) -> None:
        name, value = commands.parse_option(arguments)
        before = self._options
        self._options = set_option(before, name, value)
        if _select_load_options(self._options) != _select_load_options(before):
            self._submit_load()

    def _debug(self, arguments: str) -> None:
        self._debugging = arguments != "off"

    def _register(self, arguments: str) -> None:
        """Accept any registration."""

    def _submit_load(self) -> None:
        checkpoint, threads = _select_load_options(self._options)
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
        if self._must_compile and not self._loaded.is_set():
            self._note(COMPILING_MESSAGE)
        self._must_compile = False

    def _note(self, text: str) -> None:
        self._write_line(f"info string {text}")

    def _end_with(self, failure: LoadError | None) -> None:
        self._note(str(failure))
        self._error = failure
        self._ended.set()

    def _write_line(self, line: str) -> None:
        """Write one line, unless the output is closed; thread-safe."""
        with self._write_lock:
            if self._output_error is None:
                try:
                    self._write(line + "\n")
                except BrokenPipeError as error:
                    self._output_error = error

    def _run_tasks(self) -> None:
        for task in iter(self._tasks.get, None):
            task()

    def _finish(self) -> None:
        """Wait until the last `go` is answered or the output closed; stop unlimited searches."""
        while not (self._quit or self._ready.wait(POLL_SECONDS) or self._output_error):
            pass
        if self._go_job is not None and not self._go_job.is_bounded:
            self._go_job.stop()
        while not (
            self._go_job is None or self._go_job.finished.wait(POLL_SECONDS) or self._output_error
        ):
            pass

    def _shut_down(self) -> None:
        """Stop the search thread, but do not wait for it while it loads or compiles."""
        self._tasks.put(None)
        if self._go_job is not None and not self._go_job.answered:
            self._go_job.stop()
            self._thread.join(SHUTDOWN_SECONDS)


def _select_load_options(options: Options) -> tuple[str, int]:
    """Return the options that require loading the evaluator again when they change."""
    return options.checkpoint, options.usable_threads


def _read_lines(stream: BinaryIO) -> Iterator[str | None]:
    """Yield the decoded lines of a byte stream, and None for a line that is too long."""
    too_long = False
    while piece := stream.readline(MAX_LINE_BYTES):
        is_complete = piece.endswith(b"\n") or len(piece) < MAX_LINE_BYTES
        if is_complete and not too_long:
            yield piece.decode("utf-8", errors="replace")
        elif not too_long:
            yield None
        too_long = not is_complete
