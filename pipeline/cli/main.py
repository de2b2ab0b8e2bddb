"""The command `fianchetto`: parse, run one command, print its result or its error.

Progress goes to standard error, the result to standard output. With `--json` its last line is one
JSON object.
"""

import json
import signal
import sys
from collections.abc import Callable
from typing import Any

from engine.errors import UserError
from pipeline.cli.commands.base import Interrupt, Terminated, interrupted
from pipeline.cli.parsing import parse
from pipeline.cli.progress import show_logs
from pipeline.errors import DamagedError, DifferenceError, Stopped
from pipeline.storage.preflight import require_address_space, require_utf8

SIGNALLED = 128
"""Added to a signal's number for the exit status, as shells do."""


def _print(result: dict[str, Any], as_json: bool) -> None:
    """Print a result as JSON without its text, or as its text."""
    if as_json:
        text = json.dumps(
            {name: value for name, value in result.items() if name != "text"}, allow_nan=False
        )
    elif "text" in result:
        text = str(result["text"])
    else:
        from pipeline.evaluation.render import plain_text

        text = plain_text(result)
    print(printable(text))  # noqa: T201


def printable(text: str) -> str:
    """Replace control characters, with which a name in a file could drive the terminal."""
    return "".join(char if char.isprintable() or char in "\n\t" else "?" for char in text)


def guarded(work: Callable[[], object]) -> int:
    """Run `work` and return the exit status; user and system errors become one line."""
    try:
        work()
        return 0
    except BrokenPipeError:
        sys.stderr.close()  # the reader of our output is gone
        return 1
    except KeyboardInterrupt as error:
        line, status = (
            "interrupted",
            SIGNALLED + (signal.SIGTERM if isinstance(error, Terminated) else signal.SIGINT),
        )
    except UserError as error:
        line, status = str(error), 1 if isinstance(error, (DamagedError, DifferenceError)) else 2
        if isinstance(error, Stopped):
            status = SIGNALLED + Interrupt.received_signal if Interrupt.received_signal else 1
    except (MemoryError, RuntimeError) as error:
        # torch's message
        if not isinstance(error, MemoryError) and "allocate memory" not in str(error):
            raise
        reason = str(error).splitlines()[0][:200] if str(error) else "try smaller settings"
        line, status = f"not enough memory: {reason}", 2
    except OSError as error:
        line, status = f"{error.filename or 'the system'}: {error.strerror or error}", 2
    print(f"fianchetto: {printable(line)}", file=sys.stderr)  # noqa: T201
    return status


def main() -> None:
    """Run the command line."""

    def work() -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, interrupted)
        require_address_space()
        for word in sys.argv[1:]:
            require_utf8(word)
        command = parse(sys.argv[1:])
        from engine.compiling import announce_compiling

        show_logs()
        try:
            with announce_compiling():
                result = command.run()
            if result:
                _print(result, command.json)
        except DifferenceError as error:  # the list is printed, and the exit status is 1
            _print(error.result, command.json)
            raise

    sys.exit(guarded(work))
