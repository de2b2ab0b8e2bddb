"""What every command is made of: the option `--json`, and asking work to stop."""

import re
import signal
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ClassVar

from pipeline.errors import ConfigError


class Terminated(KeyboardInterrupt):
    """A SIGTERM, which ends a command as Ctrl-C does."""


def terminated(number: int, frame: object) -> None:
    """Answer a SIGTERM: what is open is closed on the way out, and temporary folders go."""
    raise Terminated


ADDRESS = re.compile(r"([a-z][a-z0-9+]+):/+(.*)")


class Interrupt:
    """Asks work to stop at its next good moment when a SIGTERM or a first Ctrl-C comes; a second Ctrl-C ends it at once."""

    heard: ClassVar[int] = 0
    """The signal that asked, 0 before there was one; the exit status says which."""

    def __init__(self) -> None:
        self.asked, Interrupt.heard = False, 0
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._ask)

    def _ask(self, number: int, frame: object) -> None:
        self.asked, Interrupt.heard = True, number
        signal.signal(signal.SIGINT, signal.default_int_handler)

    def __call__(self) -> bool:
        """Tell whether it has been asked."""
        return self.asked


def refuse_addresses(command: "Common") -> None:
    """Raise ConfigError for an address where a command takes folders and files of this machine only.

    A Path made of one names a folder here, such as `s3:/bucket`, that nobody meant.
    """
    for field in fields(command):
        value = getattr(command, field.name)
        for path in value if isinstance(value, tuple) else (value,):
            if isinstance(path, Path) and (found := ADDRESS.fullmatch(str(path))):
                raise ConfigError(
                    f"{found[1]}://{found[2]} lies in a store or on the web, where {field.name} cannot: name a folder, and "
                    "copy what it is to read, as `aws s3 sync` does"
                )


@dataclass(frozen=True, kw_only=True, slots=True)
class Common:
    """What every command has."""

    json: bool = False
    """Print the result as one JSON object on the last line."""

    def run(self) -> dict[str, Any]:
        """Do the work and give what is printed; nothing is, when it is empty."""
        raise NotImplementedError
