"""The command `fianchetto`: parses, runs one of pipeline/cli/commands, prints its result, turns mistakes into one line.

Each command shows a bar on a terminal and is quiet otherwise, but for what takes unusually long (kernels are compiled
once); `--json` makes the last line of standard output one JSON object. EXITS says what exit codes mean.
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
from pipeline.cli.commands.convert import Convert, Rows
from pipeline.cli.commands.data import Ingest, Sample, Show
from pipeline.cli.commands.export import Export
from pipeline.cli.commands.fetch import Fetch, Sweep
from pipeline.cli.commands.finetune import Finetune
from pipeline.cli.commands.networks import Presets
from pipeline.cli.commands.play import Uci
from pipeline.cli.commands.selfplay import SelfPlay
from pipeline.cli.commands.training import Compare, Report, Train
from pipeline.cli.progress import show_logs
from pipeline.errors import DamagedError, DifferenceError, Stopped

EXITS = """Exit status: 0 what was promised is there; 1 it is not (a damaged archive, a difference found); 2 a mistake, which
one line explains; 130 stopped by Ctrl-C, 143 by SIGTERM, and where the command can go on, the same one does."""

COMMANDS: dict[str, Callable[..., Common]] = {
    "fetch": Fetch,
    "ingest": Ingest,
    "convert": Convert,
    "rows": Rows,
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
"""What a shell adds to the number of the signal that ended a command."""


def _print(result: dict[str, Any], as_json: bool) -> None:
    """Print a result for a program or for a person."""
    if as_json:
        print(json.dumps(result, allow_nan=False))  # noqa: T201
    elif "text" in result:
        print(result["text"])  # noqa: T201
    else:
        from pipeline.evaluation.render import plain_text

        print(plain_text(result))  # noqa: T201


def guarded(work: Callable[[], object]) -> int:
    """Do the work and give the exit code; a person's mistake becomes one line on standard error."""
    try:
        work()
    except Stopped as error:
        print(f"fianchetto: {error}", file=sys.stderr)  # noqa: T201
        return SIGNALLED + Interrupt.heard if Interrupt.heard else 1
    except (DamagedError, DifferenceError) as error:
        print(f"fianchetto: {error}", file=sys.stderr)  # noqa: T201
        return 1
    except UserError as error:
        print(f"fianchetto: {error}", file=sys.stderr)  # noqa: T201
        return 2
    except KeyboardInterrupt as error:
        print("fianchetto: interrupted", file=sys.stderr)  # noqa: T201
        return SIGNALLED + (signal.SIGTERM if isinstance(error, Terminated) else signal.SIGINT)
    except BrokenPipeError:
        sys.stderr.close()  # the reader of our output is gone, which is its right
        return 1
    except OSError as error:
        print(f"fianchetto: {error.filename or 'the system'}: {error.strerror or error}", file=sys.stderr)  # noqa: T201
        return 2
    return 0


def _one_line(boxed: str) -> str:
    """Take the sentence out of the box that tyro draws round a mistake."""
    words = " ".join(line.strip("╭╰│╮╯─ ") for line in boxed.splitlines())
    sentence = re.sub(r"^.*?Error parsing \S+: |^(Parsing|Value) error ─*|\s+For full helptext.*$", "", words)
    return " ".join(sentence.replace("─", "").split())


def _parsed() -> Any:
    """Parse the command line; a mistake in it is a UserError of one line."""
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
        except DifferenceError as error:  # the list is the answer, and the exit status says that it is a bad one
            _print(error.result, command.json)
            raise

    sys.exit(guarded(work))
