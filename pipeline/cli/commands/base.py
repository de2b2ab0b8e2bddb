"""Code shared by all commands: progress, `--json`, stopping on a signal, checks of outputs."""

import inspect
import os
import signal
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from pipeline.cli.progress import bar, call_with
from pipeline.errors import ConfigError
from pipeline.storage.job_folder import JobFolder, Kind
from pipeline.storage.preflight import require_writable_folder

T = TypeVar("T")


class Terminated(KeyboardInterrupt):
    """SIGTERM was received; the command ends as it does on Ctrl-C."""


def raise_interrupt(number: int, frame: object) -> None:
    """Raise an exception on SIGTERM and Ctrl-C, so that files are closed and folders removed.

    While torch is being imported, the process exits at once: an exception inside torch's C++
    initialization would abort it.
    """
    if getattr(getattr(sys.modules.get("torch"), "__spec__", None), "_initializing", False):
        sys.stderr.write("fianchetto: interrupted\n")
        sys.stderr.flush()
        os._exit(128 + number)
    raise Terminated if number == signal.SIGTERM else KeyboardInterrupt


class Interrupt:
    """Stop callback: returns True after SIGTERM or Ctrl-C; a second Ctrl-C ends at once."""

    received_signal: ClassVar[int] = 0
    """Number of the signal received, or 0; it determines the exit status."""

    def __init__(self) -> None:
        self.asked, Interrupt.received_signal = False, 0
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._ask)

    def _ask(self, number: int, frame: object) -> None:
        self.asked, Interrupt.received_signal = True, number
        signal.signal(signal.SIGINT, raise_interrupt)

    def __call__(self) -> bool:
        """Return whether a signal was received."""
        return self.asked


def require_output(out: Path | None, kind: Kind, read: Iterable[Path]) -> None:
    """Raise ConfigError if `out` is not writable, contains other results, or is inside an input."""
    if out is not None:
        require_writable_folder(out)
        JobFolder(out, kind, ConfigError, reads=read).check()


@dataclass(frozen=True, kw_only=True, slots=True)
class Common:
    """Base of all commands: a dataclass whose fields are its settings."""

    arguments: ClassVar[Mapping[str, str]] = {}
    """Positional arguments: field name -> name in the help text."""
    basic: ClassVar[str] = ""
    """Settings with their own option in `--help`, by the last part of their keys; the others need
    --set or --config."""
    one_of: ClassVar[tuple[str, ...]] = ()
    """Mutually exclusive settings: one on the command line replaces the others in a file."""

    json: bool = False
    """Print the result as one JSON object on the last line."""

    def run(self) -> dict[str, Any]:
        """Do the work and return the result to print, empty to print nothing."""
        raise NotImplementedError

    def call(self, work: Callable[..., T], name: str = "") -> T:
        """Return the result of `work`, which gets a progress bar, and can be stopped by a signal.

        Work without a parameter `stop` is interrupted instead. `name` is the title of the bar, by
        default the command's name.
        """
        stop = Interrupt() if "stop" in inspect.signature(work).parameters else None
        with bar(name or type(self).__name__.lower()) as progress:
            return call_with(work, progress=progress, stop=stop)
