"""The command `fianchetto`: parse, run one command, print its result or its error.

Progress goes to standard error, the result to standard output. With `--json` its last line is one
JSON object. Only the module of the command to run is imported, so help and errors appear at
once.
"""

import json
import os
import signal
import sys
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem, shell_complete

from engine.errors import UserError
from pipeline.cli.commands.base import Interrupt, Terminated, raise_interrupt
from pipeline.cli.progress import show_logs
from pipeline.errors import DamagedError, DifferenceError, Stopped
from pipeline.storage.preflight import require_address_space, require_utf8

if TYPE_CHECKING:
    from pipeline.cli.settings import GivenValue, Setting

EXIT_STATUS_HELP = """Exit status: 0 success; 1 incomplete result (damaged archive, differences \
found); 2 error, explained in one line; 130 stopped by Ctrl-C, 143 by SIGTERM. \
Run the same command again to continue stopped work."""

COMMANDS = {
    "fetch": ("data:Fetch", "download dumps: months of Lichess, or any URL"),
    "ingest": ("data:Ingest", "turn PGN dumps into a dataset of positions"),
    "train": ("training:Train", "train a network on datasets"),
    "report": ("training:Report", "measure how often a network predicts the human move"),
    "play": ("play:Play", "play, ask and review games in the browser"),
    "show": ("data:Show", "show a position as the network reads it"),
    "uci": ("play:Uci", "play in a chess GUI, as a UCI engine"),
    "review": ("play:Review", "compare a game with what players of that rating play"),
    "verify": ("audit:Verify", "check datasets against their hashes and dumps"),
    "audit": ("audit:Audit", "count duplicates and leaks in datasets"),
    "rows": ("audit:Rows", "print or export rows as FEN and moves"),
    "join": ("audit:Join", "join datasets into a training set"),
    "presets": ("networks:Presets", "list the networks"),
    "runs": ("networks:Runs", "list checkpoints, reports and matches, and draw training curves"),
    "export": ("networks:Export", "export a network to ONNX, or to a page that plays it"),
    "calibrate": ("networks:Calibrate", "fit how much a search corrects a network's human moves"),
    "selfplay": ("selfplay:SelfPlay", "make a dataset by self-play or by searching positions"),
    "imitate": ("training:Imitate", "train a network to play like one player"),
    "finetune": ("selfplay:Finetune", "improve a network by search and self-play"),
    "arena": ("selfplay:Arena", "play matches between players"),
    "push": ("sharing:Push", "publish a checkpoint or dataset on the Hugging Face hub"),
    "pull": ("sharing:Pull", "download a checkpoint or dataset from the Hugging Face hub"),
    "warmup": ("warmup:Warmup", "compile all kernels now"),
}
"""Each command's module and class in pipeline.cli.commands, and its summary."""
BEGINNER_COMMANDS = 7
"""Number of commands listed under "First steps" in the help."""
COMPLETION_VARIABLE = "_FIANCHETTO_COMPLETE"
"""Environment variable that shells set to request completions."""
ABOUT = (
    "Turn chess game databases into trained players. fianchetto COMMAND --help explains a command."
)
EPILOG = (
    f"{EXIT_STATUS_HELP}\n\n"
    f'Shell completion: eval "$({COMPLETION_VARIABLE}=bash_source fianchetto)"; zsh likewise.'
)
CONTEXT = {"max_content_width": 120, "help_option_names": ["-h", "--help"]}
SET_HELP = "Set any setting; --help-all lists them."
CONFIG_HELP = "Read settings from a YAML file."
METAVARS = {int: "N", float: "X", bool: "true|false", Path: "PATH", str: "TEXT"}
SIGNAL_STATUS_BASE = 128
"""Added to a signal's number for the exit status, as shells do."""


def main() -> None:
    """Run the command line."""

    def work() -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, raise_interrupt)
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
        except DifferenceError as error:  # print the list before exiting with 1
            _print(error.result, command.json)
            raise

    sys.exit(run_and_report_errors(work))


def _print(result: dict[str, Any], as_json: bool) -> None:
    """Print a result as JSON without its text, or as its text."""
    if as_json:
        figures = {name: value for name, value in result.items() if name != "text"}
        text = json.dumps(figures, allow_nan=False)
    elif "text" in result:
        text = str(result["text"])
    else:
        from pipeline.storage.tables import plain_text

        text = plain_text(result)
    print(replace_control_characters(text))  # noqa: T201


def replace_control_characters(text: str) -> str:
    """Replace control characters, which could send escape sequences to the terminal."""
    return "".join(char if char.isprintable() or char in "\n\t" else "?" for char in text)


def run_and_report_errors(work: Callable[[], object]) -> int:
    """Run `work` and return the exit status; user and system errors become one line."""
    try:
        work()
        return 0
    except BrokenPipeError:
        sys.stderr.close()  # the reader of the output is gone
        return 1
    except KeyboardInterrupt as error:
        number = signal.SIGTERM if isinstance(error, Terminated) else signal.SIGINT
        line, status = "interrupted", SIGNAL_STATUS_BASE + number
    except UserError as error:
        line, status = str(error), 1 if isinstance(error, (DamagedError, DifferenceError)) else 2
        if isinstance(error, Stopped):
            status = (
                SIGNAL_STATUS_BASE + Interrupt.received_signal if Interrupt.received_signal else 1
            )
    except (MemoryError, RuntimeError) as error:
        # torch raises RuntimeError when it runs out of memory
        if not isinstance(error, MemoryError) and "allocate memory" not in str(error):
            raise
        reason = str(error).splitlines()[0][:200] if str(error) else "try smaller settings"
        line, status = f"not enough memory: {reason}", 2
    except OSError as error:
        line, status = f"{error.filename or 'the system'}: {error.strerror or error}", 2
    print(f"fianchetto: {replace_control_characters(line)}", file=sys.stderr)  # noqa: T201
    return status


def parse(words: Sequence[str]) -> Any:
    """Parse a command line into a command.

    Raises SystemExit after printing help, and UserError for a mistake in the command line.
    """
    commands = Commands("fianchetto", help=ABOUT, epilog=EPILOG, context_settings=CONTEXT)
    version = click.version_option(package_name="fianchetto", message="fianchetto %(version)s")
    commands = version(commands)
    if COMPLETION_VARIABLE in os.environ:
        raise SystemExit(
            shell_complete(
                commands, {}, "fianchetto", COMPLETION_VARIABLE, os.environ[COMPLETION_VARIABLE]
            )
        )
    try:
        with commands.make_context("fianchetto", list(words) or ["--help"]) as context:
            return commands.invoke(context)
    except click.exceptions.Exit as ended:
        raise SystemExit(ended.exit_code) from None
    except (click.ClickException, UserError) as error:
        text = str(error)
        if isinstance(error, click.ClickException):
            text = error.format_message().rstrip(".")
        name = f"{words[0]} " if words[0] in COMMANDS else ""
        raise UserError(f"{text} (see fianchetto {name}--help)") from error


class Commands(click.Group):
    """The group of all COMMANDS; each is imported when it is used."""

    def get_command(self, _: click.Context, name: str) -> click.Command | None:
        """Return a command; None for an unknown name."""
        return Command(name) if name in COMMANDS else None

    def resolve_command(self, context: click.Context, words: list[str]) -> Any:
        """Resolve the command. Raises UserError with the closest name for an unknown command."""
        if words[0] not in COMMANDS and not words[0].startswith("-"):
            near = get_close_matches(words[0], COMMANDS, n=1)
            raise UserError(
                f"there is no command {words[0]!r}" + (f"; did you mean {near[0]}?" if near else "")
            )
        return super().resolve_command(context, words)

    def format_commands(self, _: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands, those for beginners first."""
        rows = [(name, does) for name, (_, does) in COMMANDS.items()]
        for title, some in (
            ("First steps", rows[:BEGINNER_COMMANDS]),
            ("More commands", rows[BEGINNER_COMMANDS:]),
        ):
            with formatter.section(title):
                formatter.write_dl(some)

    def shell_complete(self, _: click.Context, text: str) -> list[CompletionItem]:
        """Complete names without importing the commands."""
        return [
            CompletionItem(name, help=does)
            for name, (_, does) in COMMANDS.items()
            if name.startswith(text)
        ]


class Command(click.Command):
    """A click command generated from a command's dataclass; invoking it returns an instance."""

    def __init__(self, name: str) -> None:
        from pipeline.cli.settings import collect_settings, find_key

        module, _, cls = COMMANDS[name][0].partition(":")
        self.cls: Any = getattr(import_module(f"pipeline.cli.commands.{module}"), cls)
        self.settings = collect_settings(self.cls)
        basic = {find_key(end, self.settings, name) for end in (*self.cls.basic.split(), "json")}
        options = {key.rpartition(".")[2]: key for key in self.settings if key in basic}
        self.keys = {**{key: key for key in self.cls.arguments}, **options}
        """Name of the click parameter -> key of the setting."""
        others = len(self.settings) - len(self.keys)
        *shown, json_option = (_option(name, self.settings[key]) for name, key in options.items())
        more = [
            click.Option(["--set"], multiple=True, metavar="KEY=VALUE", help=SET_HELP),
            click.Option(["--config"], metavar="FILE", help=CONFIG_HELP),
            click.Option(
                ["--help-all"], is_flag=True, is_eager=True, hidden=True, callback=self._print_all
            ),
        ]
        for option in more:
            option.hidden |= not others
        summary, *_ = (self.cls.__doc__ or "").split("\n\n")
        described = [
            f"{word}: {self.settings[key].text}" for key, word in self.cls.arguments.items()
        ]
        end = f"{others} more settings: --help-all lists them, --set and --config set them."
        super().__init__(
            name,
            params=[*map(self._argument, self.cls.arguments), *shown, *more, json_option],
            help="\n\n".join([" ".join(summary.split()), *described]),
            epilog=end if others else None,
            context_settings=CONTEXT,
        )

    def invoke(self, context: click.Context) -> Any:
        """Build the dataclass from the command line. Raises UserError."""
        from pipeline.cli.settings import build

        given = self._collect_values(context.params)
        required = [key for key, setting in self.settings.items() if setting.is_required]
        if missing := [key for key in required if key not in given]:
            raise UserError(f"{' and '.join(map(self._label, missing))} must be given")
        return build(self.cls, given, self.settings)

    def make_context(self, *words: Any, **extra: Any) -> click.Context:
        """Parse the arguments; if an unknown option is a setting, the error suggests --set."""
        try:
            return super().make_context(*words, **extra)
        except click.NoSuchOption as error:
            name = error.option_name.lstrip("-").replace("-", "_")
            keys = [key for key in self.settings if name in (key, key.rpartition(".")[2])]
            if not keys:
                raise
            instead = " or ".join(f"--set {key}=VALUE" for key in keys)
            raise UserError(f"{error.option_name} is not an option; use {instead}") from error

    def _collect_values(self, params: dict[str, Any]) -> "dict[str, GivenValue]":
        """Collect the values: options override --set, which overrides the YAML file."""
        from pipeline.cli.settings import GivenValue, read_assignment, read_config, split_list

        path = params["config"]
        from_file = {} if path is None else read_config(Path(path), self.settings)
        given = dict(read_assignment(text, self.settings) for text in params["set"])
        for name, key in self.keys.items():
            value = params[name]
            if value is None or value == ():
                continue
            if isinstance(value, tuple) and key not in self.cls.arguments:
                split = split_list if self.settings[key].commas else lambda text: [text]
                value = [item for text in value for item in split(text)]
            given[key] = GivenValue(
                list(value) if isinstance(value, tuple) else value, self._label(key)
            )
        replaced = self.cls.one_of if given.keys() & set(self.cls.one_of) else ()
        return {key: one for key, one in from_file.items() if key not in replaced} | given

    def _argument(self, key: str) -> click.Argument:
        several = self.settings[key].is_list
        return click.Argument(
            [key], nargs=-1 if several else 1, required=False, metavar=self.cls.arguments[key]
        )

    def _label(self, key: str) -> str:
        """Return a setting's name on the command line: DATASET, --min-elo, or --set and its key."""
        if key in self.cls.arguments:
            return str(self.cls.arguments[key])
        names = [name for name, other in self.keys.items() if other == key]
        return f"--{names[0].replace('_', '-')}" if names else f"--set {key}"

    def _print_all(self, context: click.Context, _: Any, wanted: bool) -> None:
        """Print the whole docstring and every setting, and exit."""
        if not wanted:
            return
        page = context.make_formatter()
        for paragraph in (self.cls.__doc__ or "").split("\n\n"):
            page.write_text(" ".join(paragraph.split()))
            page.write_paragraph()
        how = "--set KEY=VALUE, or nested in a YAML file with --config FILE."
        page.write_text(f"Set with fianchetto {self.name} {how}")
        page.write_paragraph()
        texts = {key: f"{one.text} {one.shown_default}" for key, one in self.settings.items()}
        rows = [(f"{key} {_metavar(self.settings[key])}", text) for key, text in texts.items()]
        page.write_dl(rows, col_max=34)
        click.echo(page.getvalue().rstrip())
        context.exit()


def _metavar(setting: "Setting") -> str:
    """Return the placeholder for a setting's values in the help text."""
    return "|".join(setting.choices) or METAVARS[setting.item] + (
        ",..." if setting.is_list and setting.commas else ""
    )


def _option(name: str, setting: "Setting") -> click.Option:
    """Return the option of a setting; pipeline.cli.settings converts its text values."""
    flag, text = f"--{name.replace('_', '-')}", f"{setting.summary} {setting.shown_default}".strip()
    if setting.kind is bool:
        both = f"{flag}/--no-{name.replace('_', '-')}" if setting.default else flag
        return click.Option([both, name], is_flag=True, default=None, help=text)
    kind: Any = click.Path() if setting.item is Path else str
    if setting.choices:
        kind = click.Choice(setting.choices)
    return click.Option(
        [flag, name], type=kind, multiple=setting.is_list, metavar=_metavar(setting), help=text
    )
