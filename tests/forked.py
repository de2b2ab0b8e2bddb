"""Start Python processes quickly: fork a server that has imported torch and loaded the kernels.

A new Python needs one to three CPU seconds for that. `Popen` and `run` replace those of subprocess
for commands `[sys.executable, "-m", MODULE, ...]` and `[sys.executable, "-c", CODE, ...]`. The
server is that of multiprocessing, which imports tests/preloaded.py. Tests of imports and compiling
need a new Python.
"""

import atexit
import contextlib
import inspect
import itertools
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import threading
import traceback
import types
from collections.abc import Callable
from multiprocessing.context import ForkServerContext
from multiprocessing.reduction import DupFd
from typing import Any, NoReturn

KILL_AT = "FIANCHETTO_TESTS_KILL_AT"
"""Environment variable: a process kills itself before its file operation of this number, from 1."""
FILE_OPERATIONS = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate"}
"""Audit events that `KILL_AT` counts, besides `open` for writing; `os.replace` is a rename."""
ARGUMENTS = inspect.signature(subprocess.Popen._execute_child)  # type: ignore[attr-defined]
PIPES = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
CONTEXT: ForkServerContext = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["tests.preloaded"])


class Popen(subprocess.Popen[Any]):
    """A process that the fork server starts."""

    def _execute_child(self, *arguments: Any) -> None:
        given = ARGUMENTS.bind(self, *arguments).arguments
        executable, *command = map(str, given["args"])
        assert executable == sys.executable
        streams = [given[name] for name in ("p2cread", "c2pwrite", "errwrite")]
        streams = [number if stream == -1 else stream for number, stream in enumerate(streams)]
        folder, environment = str(given["cwd"] or "."), dict(given["env"] or os.environ)
        self.process = CONTEXT.Process(
            target=_run_command,
            args=(command, folder, environment, _Streams(streams)),
            daemon=True,  # it is killed if the tests end without waiting for it
        )
        self.process.start()
        assert self.process.pid is not None
        self.pid, self._child_created = self.process.pid, True
        self._close_pipe_fds(*(given[name] for name in PIPES))  # type: ignore[attr-defined]

    def _wait(self, timeout: float | None) -> int:
        self.process.join(timeout)
        if self._internal_poll() is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        return self.returncode

    def _internal_poll(self, _deadstate: int | None = None) -> int | None:
        self.returncode = self.process.exitcode  # type: ignore[assignment]
        return self.returncode


def run(command: list[str], **options: Any) -> subprocess.CompletedProcess[Any]:
    """Run a command and return its output."""
    with Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options) as process:
        out, error = process.communicate()
    return subprocess.CompletedProcess(command, process.returncode, out, error)


class _Streams:
    """File descriptors that are sent to a new process."""

    def __init__(self, descriptors: list[int]) -> None:
        self.descriptors = descriptors

    def __getstate__(self) -> list[Any]:
        return [DupFd(descriptor) for descriptor in self.descriptors]

    def __setstate__(self, state: list[Any]) -> None:
        self.descriptors = [copy.detach() for copy in state]


# ---------------------------------------------------------------- in the new process


def _run_command(
    command: list[str], folder: str, environment: dict[str, str], streams: _Streams
) -> NoReturn:
    """Run a command in this process as a new Python would, and end the process."""
    for number, stream in enumerate(streams.descriptors):
        os.dup2(stream, number)
        os.close(stream)
    sys.stdin, sys.stdout = open(0, closefd=False), open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115
    multiprocessing.current_process()._config["daemon"] = False  # type: ignore[attr-defined]
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    if KILL_AT in os.environ:
        _kill_before(int(os.environ.pop(KILL_AT)))
    status = _execute(command, folder)
    threading._shutdown()  # type: ignore[attr-defined]  # waits for threads
    atexit._run_exitfuncs()
    for output in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # it has no reader, or was closed
            output.flush()
    os._exit(status)  # freeing the modules would take 1.5 s


def _execute(command: list[str], folder: str) -> int:
    """Execute a module or code as `__main__`; return the exit status."""
    kind, what, *sys.argv[1:] = command
    sys.path[0] = "" if kind == "-c" else folder
    try:
        if kind == "-m":
            runpy.run_module(what, run_name="__main__", alter_sys=True)
        else:
            sys.argv[0] = "-c"
            sys.modules["__main__"] = types.ModuleType("__main__")
            exec(compile(what, "<string>", "exec"), vars(sys.modules["__main__"]))
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
