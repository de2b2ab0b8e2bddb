"""The command `fianchetto`: parses, runs one of pipeline/cli/commands, prints its result, and turns errors into one line.

A command shows a progress bar on a terminal and prints nothing but its result otherwise, except what takes unusually long
(compiling kernels once). With `--json` the last line of standard output is one JSON object.
"""

import contextlib
import io
import json
import re
import signal
import sys
from collections.abc import Callable
from typing import Any

import tyro

from engine.compiling import announced
from engine.errors import UserError
from pipeline.cli.commands.arena import Arena, Judge, Ladder
from pipeline.cli.commands.audit import Audit, Join, Verify
from pipeline.cli.commands.base import Common, Interrupt, Terminated, refuse_addresses, terminated
from pipeline.cli.commands.bench import Bench
from pipeline.cli.commands.data import Ingest, Sample, Show
from pipeline.cli.commands.fetch import Fetch, Sweep
from pipeline.cli.commands.networks import Export, Presets
from pipeline.cli.commands.play import Uci
from pipeline.cli.commands.selfplay import Finetune, SelfPlay
from pipeline.cli.commands.training import Compare, Report, Train
from pipeline.cli.progress import show_logs
from pipeline.errors import DamagedError, DifferenceError, Stopped

EXITS = """Exit status: 0 success; 1 an incomplete result (a damaged archive, a difference found); 2 an error, explained in one
line; 130 stopped by Ctrl-C, 143 by SIGTERM: where a command can be continued, the same command continues it."""

COMMANDS: dict[str, Callable[..., Common]] = {
    "fetch": Fetch,
    "ingest": Ingest,
    "verify": Verify,
    "audit": Audit,
    "join": Join,
    "train": Train,
    "report": Report,
    "compare": Compare,
    "selfplay": SelfPlay,
    "presets": Presets,
    "finetune": Finetune,
    "export": Export,
    "show": Show,
    "sample": Sample,
    "sweep": Sweep,
    "uci": Uci,
    "arena": Arena,
    "ladder": Ladder,
    "judge": Judge,
    "bench": Bench,
}

SIGNALLED = 128
"""A shell's exit status for a signal is its number plus this."""


def _print(result: dict[str, Any], as_json: bool) -> None:
    """Print a result as JSON or as text."""
    if as_json:
        print(json.dumps(result, allow_nan=False))  # noqa: T201
    elif "text" in result:
        print(result["text"])  # noqa: T201
    else:
        from pipeline.evaluation.render import plain_text

        print(plain_text(result))  # noqa: T201


def guarded(work: Callable[[], object]) -> int:
    """Do the work and return the exit status; an error of the user becomes one line on standard error."""
    try:
        work()
        return 0
    except BrokenPipeError:
        sys.stderr.close()  # nobody reads our output any more
        return 1
    except KeyboardInterrupt as error:
        line, status = "interrupted", SIGNALLED + (signal.SIGTERM if isinstance(error, Terminated) else signal.SIGINT)
    except UserError as error:
        line, status = str(error), 1 if isinstance(error, (DamagedError, DifferenceError)) else 2
        if isinstance(error, Stopped):
            status = SIGNALLED + Interrupt.heard if Interrupt.heard else 1
    except OSError as error:
        line, status = f"{error.filename or 'the system'}: {error.strerror or error}", 2
    print(f"fianchetto: {line}", file=sys.stderr)  # noqa: T201
    return status


def _one_line(boxed: str) -> str:
    """Return the sentence in the box that tyro draws around an error."""
    words = " ".join(line.strip("╭╰│╮╯─ ") for line in boxed.splitlines())
    sentence = re.sub(r"^.*?Error parsing \S+: |^(Parsing|Value) error ─*|\s+For full helptext.*$", "", words)
    return " ".join(sentence.replace("─", "").split())


def _parsed() -> Any:
    """Parse the command line; raise UserError with one line for an error in it."""
    caught = io.StringIO()
    try:
        with contextlib.redirect_stderr(caught):
            return tyro.extras.subcommand_cli_from_dict(
                COMMANDS, prog="fianchetto", description=f"Chess game databases into trained players.\n\n{EXITS}"
            )
    except SystemExit as ended:
        if not ended.code:  # --help
            raise
        raise UserError(f"{_one_line(caught.getvalue())} (fianchetto --help explains)") from None


def main() -> None:
    """Run the command line."""

    def work() -> None:
        signal.signal(signal.SIGTERM, terminated)
        command = _parsed()
        show_logs()
        refuse_addresses(command)
        try:
            with announced():
                result = command.run()
            if result:
                _print(result, command.json)
        except DifferenceError as error:  # the list is printed, and the exit status is 1
            _print(error.result, command.json)
            raise

    sys.exit(guarded(work))
