"""The command `fianchetto`: parses, runs one of pipeline/commands, prints its result, turns mistakes into one line.

Each command shows a bar on a terminal and is quiet otherwise; `--json` makes the last line of standard output one JSON
object. Exit codes: 0 what was promised is there, 1 it is not (a damaged archive, a stopped run), 2 a mistake that one line
explains, 130 Ctrl-C.
"""

import contextlib
import io
import json
import re
import sys
from collections.abc import Callable
from typing import Any

import tyro

from engine.errors import UserError
from pipeline.commands.arena import Arena, Ladder
from pipeline.commands.base import Common
from pipeline.commands.bench import Bench
from pipeline.commands.data import Ingest, Sample, Show
from pipeline.commands.export import Export
from pipeline.commands.fetch import Fetch, Sweep
from pipeline.commands.networks import Presets
from pipeline.commands.play import Uci
from pipeline.commands.training import Report, Train
from pipeline.errors import DamagedError, Stopped

COMMANDS: dict[str, Callable[..., Common]] = {
    "fetch": Fetch,
    "ingest": Ingest,
    "train": Train,
    "report": Report,
    "presets": Presets,
    "export": Export,
    "show": Show,
    "sample": Sample,
    "sweep": Sweep,
    "uci": Uci,
    "arena": Arena,
    "ladder": Ladder,
    "bench": Bench,
}


def _print(result: dict[str, Any], as_json: bool) -> None:
    """Print a result for a program or for a person."""
    if as_json:
        print(json.dumps(result, allow_nan=False))  # noqa: T201
    elif "text" in result:
        print(result["text"])  # noqa: T201
    else:
        from pipeline.reports import plain_text

        print(plain_text(result))  # noqa: T201


def guarded(work: Callable[[], None]) -> int:
    """Do the work and give the exit code; a person's mistake becomes one line on standard error."""
    try:
        work()
    except (DamagedError, Stopped) as error:
        print(f"fianchetto: {error}", file=sys.stderr)  # noqa: T201
        return 1
    except UserError as error:
        print(f"fianchetto: {error}", file=sys.stderr)  # noqa: T201
        return 2
    except KeyboardInterrupt:
        print("fianchetto: interrupted", file=sys.stderr)  # noqa: T201
        return 130
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
                COMMANDS, prog="fianchetto", description="Chess game databases into trained players."
            )
    except SystemExit as ended:
        if not ended.code:  # --help
            raise
        raise UserError(f"{_one_line(caught.getvalue())} (fianchetto --help explains)") from None


def main() -> None:
    """Run the command line."""

    def work() -> None:
        command = _parsed()
        _print(command.run(), command.json)

    sys.exit(guarded(work))
