"""Code shared by all commands: progress, `--json`, stopping on a signal, checks of outputs."""

import inspect
import os
import signal
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from pipeline.cli.progress import call_with_supported, show_progress
from pipeline.errors import ConfigError
from pipeline.storage.job_folder import JobFolder, Kind
from pipeline.storage.preflight import require_writable_folder

T = TypeVar("T")


class Terminated(KeyboardInterrupt):
    """SIGTERM was received; the command ends as it does on Ctrl-C."""


def raise_interrupt(number: int, frame: object) -> None:
    """Handle SIGTERM and Ctrl-C by an exception, so that files are closed and folders removed.

    While torch is being imported, the process exits at once: an exception inside torch's C++
    initialization would abort it.
    """
    if getattr(getattr(sys.modules.get("torch"), "__spec__", None), "_initializing", False):
        sys.stderr.write("fianchetto: interrupted\n")
        sys.stderr.flush()
        os._exit(128 + number)
    raise Terminated if number == signal.SIGTERM else KeyboardInterrupt


class StopOnSignal:
    """Stop callback: returns True after SIGTERM or Ctrl-C; a later Ctrl-C interrupts at once."""

    received_signal: ClassVar[int] = 0
    """Number of the signal received, or 0; it determines the exit status."""

    def __init__(self) -> None:
        self.is_requested, StopOnSignal.received_signal = False, 0
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._request_stop)

    def _request_stop(self, number: int, frame: object) -> None:
        self.is_requested, StopOnSignal.received_signal = True, number
        signal.signal(signal.SIGINT, raise_interrupt)

    def __call__(self) -> bool:
        """Return whether a signal was received."""
        return self.is_requested


def require_output(out: Path | None, kind: Kind, inputs: Iterable[Path]) -> None:
    """Raise ConfigError if `out` is given but not writable, has other results or is in an input."""
    if out is not None:
        require_writable_folder(out)
        JobFolder(out, kind, ConfigError, reads=inputs).check()


@dataclass(frozen=True, kw_only=True, slots=True)
class BaseCommand:
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

    def call_with_progress(self, work: Callable[..., T], title: str = "") -> T:
        """Call `work` with a progress callback and a stop callback, and return its result.

        The bar's title is `title`, or the command's name. Ctrl-C and SIGTERM interrupt work that
        has no parameter `stop`.
        """
        stop = StopOnSignal() if "stop" in inspect.signature(work).parameters else None
        with show_progress(title or type(self).__name__.lower()) as progress:
            return call_with_supported(work, progress=progress, stop=stop)
