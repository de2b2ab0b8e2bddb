"""Start Python processes quickly: fork a server that has imported torch and loaded the kernels.

A new Python needs one to three CPU seconds for that. `Popen` and `run` replace those of subprocess
for commands `[sys.executable, "-m", MODULE, ...]` and `[sys.executable, "-c", CODE, ...]`. Tests of
imports and compiling need a new Python.

    test -> Popen -- command, folder, environment, streams --> server (one per pytest worker)
                     -> os.fork() -> the child runs the command as `__main__`

The server has no threads, which a fork would lose: it has not read Parquet or trained.
"""

import atexit
import contextlib
import inspect
import itertools
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
import types
from collections.abc import Callable
from functools import cache
from typing import Any, NoReturn

from tests.conftest import REPOSITORY

KILL_AT = "FIANCHETTO_TESTS_KILL_AT"
"""Environment variable: a process kills itself before its file operation of this number, from 1."""
FILE_OPERATIONS = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate"}
"""Audit events that `KILL_AT` counts, besides `open` for writing; `os.replace` is a rename."""
POLL_SECONDS = 0.01
RUNNING = -1
"""Answer of the server instead of an exit status."""
GAME = (
    b'[Event "Rated"]\n[Site "https://lichess.org/fianchet"]\n[Result "1-0"]\n\n1. e4 f6 2. d4 '
    b"g5 3. Qh5# 1-0\n"
)
ARGUMENTS = inspect.signature(subprocess.Popen._execute_child)  # type: ignore[attr-defined]
PIPES = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")


class Popen(subprocess.Popen[Any]):
    """A process that the server forks and waits for."""

    def _execute_child(self, *arguments: Any) -> None:
        given = ARGUMENTS.bind(self, *arguments).arguments
        assert given["args"][0] == sys.executable
        request = {
            "command": [str(word) for word in given["args"][1:]],
            "folder": str(given["cwd"] or os.getcwd()),  # noqa: PTH109
            "environment": dict(given["env"] or os.environ),
        }
        streams = [given[name] for name in ("p2cread", "c2pwrite", "errwrite")]
        ours = [number if stream == -1 else stream for number, stream in enumerate(streams)]
        self.pid = _server().ask(request, ours)
        self._child_created = True
        self._close_pipe_fds(*(given[name] for name in PIPES))  # type: ignore[attr-defined]

    def _try_wait(self, flags: int) -> tuple[int, int]:
        while (status := _server().ask({"wait": self.pid})) == RUNNING:
            if flags & os.WNOHANG:
                return 0, 0
            time.sleep(POLL_SECONDS)
        return self.pid, status

    def _internal_poll(self, _deadstate: int | None = None) -> int | None:
        if self.returncode is None:
            pid, status = self._try_wait(os.WNOHANG)
            if pid:
                self._handle_exitstatus(status)  # type: ignore[attr-defined]
        return self.returncode


def run(command: list[str], **options: Any) -> subprocess.CompletedProcess[Any]:
    """Run a command and return its output."""
    with Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options) as process:
        out, error = process.communicate()
    return subprocess.CompletedProcess(command, process.returncode, out, error)


class Server:
    """The tests' connection to the server."""

    def __init__(self) -> None:
        self.socket, theirs = socket.socketpair()
        with theirs:
            words = [sys.executable, "-m", "tests.forked", str(theirs.fileno())]
            # a new session, so that Ctrl-C in the terminal does not reach it
            self.process = subprocess.Popen(
                words, cwd=REPOSITORY, pass_fds=[theirs.fileno()], start_new_session=True
            )
        self.answers = self.socket.makefile("r")

    def ask(self, request: dict[str, Any], streams: list[int] | None = None) -> int:
        """Send a request with the process's standard streams; return the answer."""
        socket.send_fds(self.socket, [json.dumps(request).encode() + b"\n"], streams or [])
        return int(self.answers.readline())


@cache
def _server() -> Server:
    return Server()


# ---------------------------------------------------------------- the server


def main() -> None:
    """Answer requests until the tests end; a child runs the requested command."""
    theirs = socket.socket(fileno=int(sys.argv[1]))
    _load()
    while request := _received(theirs):
        asked, streams = request
        if "wait" in asked:
            pid, status = os.waitpid(asked["wait"], os.WNOHANG)
            answer = status if pid else RUNNING
        elif not (answer := os.fork()):
            theirs.close()
            _end(_status(asked, streams))
        for stream in streams:
            os.close(stream)
        theirs.sendall(f"{answer}\n".encode())


def _load() -> None:
    """Import modules and load kernels that take long."""
    import torch
    import torch._dynamo  # as the first optimizer does

    import pipeline.cli.main
    import pipeline.finetune.loop
    import pipeline.matches.arena
    import pipeline.selfplay.job
    import pipeline.training.train  # noqa: F401
    from engine.evaluation import evaluator, handwritten
    from engine.player.player import warm_up

    torch.set_num_threads(1)
    _encode_a_game()
    for evaluate in (evaluator.uniform, handwritten.evaluate):
        warm_up(evaluate)


def _encode_a_game() -> None:
    """Load the kernels of an ingest."""
    import tempfile
    from pathlib import Path

    import numpy as np

    from pipeline.dumps.chunks import Chunk
    from pipeline.ingest.chunk import ChunkTask, IngestConfig, encode_chunk, release_buffers
    from pipeline.storage.job_folder import DATASET, JobFolder

    with tempfile.TemporaryDirectory(prefix="fianchetto-") as folder:
        JobFolder(Path(folder), DATASET, ValueError).make_notes_folder()
        encode_chunk(
            ChunkTask(Chunk(0, 0, 0, 0, GAME, np.zeros(1, dtype=np.int64)), folder, IngestConfig())
        )
    release_buffers()


def _received(theirs: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """Return the next request and its streams; None when the tests have ended."""
    text, streams = b"", []
    while not text.endswith(b"\n"):
        part, sent, _, _ = socket.recv_fds(theirs, 1 << 20, len(PIPES))
        if not part:
            return None
        text += part
        streams += sent
    return json.loads(text), streams


def _status(asked: dict[str, Any], streams: list[int]) -> int:
    """Run a command and return its exit status."""
    try:
        _become(asked, streams)
    except SystemExit as error:
        if error.code is None or isinstance(error.code, int):
            return error.code or 0
        sys.stderr.write(f"{error.code}\n")
        return 1
    except KeyboardInterrupt:
        traceback.print_exc()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    except BaseException:  # noqa: BLE001 - printed, and reported by the exit status
        traceback.print_exc()
        return 1
    return 0


def _end(status: int) -> NoReturn:
    """End this process without freeing its modules, which would take 1.5 s."""
    threading._shutdown()  # type: ignore[attr-defined]  # waits for threads
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # it has no reader, or was closed
            stream.flush()
    os._exit(status)


def _become(asked: dict[str, Any], streams: list[int]) -> None:
    """Run a command in this process as a new Python would."""
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    sys.stdin, sys.stdout = open(0, closefd=False), open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115
    os.chdir(asked["folder"])
    os.environ.clear()
    os.environ.update(asked["environment"])
    if KILL_AT in os.environ:
        _kill_before(int(os.environ.pop(KILL_AT)))
    kind, what, *sys.argv[1:] = asked["command"]
    sys.path[0] = "" if kind == "-c" else asked["folder"]
    if kind == "-m":
        runpy.run_module(what, run_name="__main__", alter_sys=True)
    else:
        sys.argv[0] = "-c"
        sys.modules["__main__"] = types.ModuleType("__main__")
        exec(compile(what, "<string>", "exec"), vars(sys.modules["__main__"]))


def count_operations(act: Callable[[int], object]) -> None:
    """Call a function before each file operation of this process, with its number from 1."""
    numbers = itertools.count(1)

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        writes = event == "open" and arguments[2] & (os.O_WRONLY | os.O_RDWR)
        if writes or event in FILE_OPERATIONS:
            act(next(numbers))

    sys.addaudithook(hook)


def _kill_before(operation: int) -> None:
    """Kill this process before its file operation of this number."""
    count_operations(
        lambda number: os.kill(os.getpid(), signal.SIGKILL) if number == operation else None
    )


if __name__ == "__main__":
    main()
