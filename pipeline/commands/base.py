"""What every command is made of: the option `--json`, and asking work to stop."""

import signal
from dataclasses import dataclass
from typing import Any, ClassVar


class Terminated(KeyboardInterrupt):
    """A SIGTERM, which ends a command as Ctrl-C does."""


def terminated(number: int, frame: object) -> None:
    """Answer a SIGTERM: what is open is closed on the way out, and temporary folders go."""
    raise Terminated


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


@dataclass(frozen=True, kw_only=True, slots=True)
class Common:
    """What every command has."""

    json: bool = False
    """Print the result as one JSON object on the last line."""

    def run(self) -> dict[str, Any]:
        """Do the work and give what is printed; nothing is, when it is empty."""
        raise NotImplementedError
