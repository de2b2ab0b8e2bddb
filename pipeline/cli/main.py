"""The command `fianchetto`: parse the command line, run a command, print its result or its error.

Progress goes to standard error, the result to standard output. With `--json`, the last line of the
result is one JSON object. Only the module of the given command is imported, so that help and errors
appear at once.
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
from pipeline.cli.commands.base import StopOnSignal, Terminated, raise_interrupt
from pipeline.cli.progress import show_logs
from pipeline.errors import DamagedError, DifferenceError, Stopped
from pipeline.storage.preflight import require_address_space, require_utf8

if TYPE_CHECKING:
    from pipeline.cli.settings import GivenValue, Setting

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
    "calibrate": ("networks:Calibrate", "fit how much a search changes predictions of human moves"),
    "selfplay": ("selfplay:SelfPlay", "make a dataset by self-play or by searching positions"),
    "imitate": ("training:Imitate", "train a network to play like one player"),
    "finetune": ("selfplay:Finetune", "improve a network by search and self-play"),
    "arena": ("selfplay:Arena", "play matches between players"),
    "push": ("sharing:Push", "publish a checkpoint or dataset on the Hugging Face hub"),
    "pull": ("sharing:Pull", "download a checkpoint or dataset from the Hugging Face hub"),
    "warmup": ("warmup:Warmup", "compile all kernels now"),
}
"""Each command's module and class in pipeline.cli.commands, and its summary."""
NUM_FIRST_STEPS = 7
"""Number of COMMANDS that the help lists under "First steps"."""
COMPLETION_VARIABLE = "_FIANCHETTO_COMPLETE"
"""Environment variable that shells set to request completions."""
PROGRAM_HELP = (
    "Turn chess game databases into trained players. fianchetto COMMAND --help explains a command."
)
HELP_EPILOG = f"""Exit status: 0 success; 1 incomplete result (damaged archive, differences found);
2 error, explained in one line; 130 stopped by Ctrl-C, 143 by SIGTERM. Run the same command again to
continue stopped work.

Shell completion: eval "$({COMPLETION_VARIABLE}=bash_source fianchetto)"; zsh likewise."""
CONTEXT_SETTINGS = {"max_content_width": 120, "help_option_names": ["-h", "--help"]}
SET_HELP = "Set any setting; --help-all lists them."
CONFIG_HELP = "Read settings from a YAML file."
TYPE_METAVARS = {int: "N", float: "X", bool: "true|false", Path: "PATH", str: "TEXT"}
SIGNAL_STATUS_BASE = 128
"""Number that shells add to a signal's number to form the exit status."""


def main() -> None:
    """Run the command line."""

    def run_command() -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, raise_interrupt)
        require_address_space()
        for argument in sys.argv[1:]:
            require_utf8(argument)
        command = parse(sys.argv[1:])
        from engine.compiling import announce_compiling

        show_logs()
        try:
            with announce_compiling():
                result = command.run()
            if result:
                _print_result(result, command.json)
        except DifferenceError as error:  # print the differences before exiting with 1
            _print_result(error.result, command.json)
            raise

    sys.exit(run_and_report_errors(run_command))


def _print_result(result: dict[str, Any], as_json: bool) -> None:
    """Print the `text` of a result, or its entries if it has none, or the entries as JSON."""
    if as_json:
        figures = {name: value for name, value in result.items() if name != "text"}
        text = json.dumps(figures, allow_nan=False)
    elif "text" in result:
        text = str(result["text"])
    else:
        from pipeline.storage.tables import format_plain_text

        text = format_plain_text(result)
    print(replace_control_characters(text))  # noqa: T201


def replace_control_characters(text: str) -> str:
    """Replace control characters, which could send escape sequences to the terminal."""
    return "".join(char if char.isprintable() or char in "\n\t" else "?" for char in text)


def run_and_report_errors(work: Callable[[], object]) -> int:
    """Run `work` and return the exit status; print interrupts and expected errors as one line."""
    try:
        work()
        return 0
    except BrokenPipeError:
        sys.stderr.close()  # the program that read the output has ended
        return 1
    except KeyboardInterrupt as error:
        number = signal.SIGTERM if isinstance(error, Terminated) else signal.SIGINT
        line, status = "interrupted", SIGNAL_STATUS_BASE + number
    except UserError as error:
        line, status = str(error), 1 if isinstance(error, (DamagedError, DifferenceError)) else 2
        if isinstance(error, Stopped):
            received = StopOnSignal.received_signal
            status = SIGNAL_STATUS_BASE + received if received else 1
    except (MemoryError, RuntimeError) as error:
        # torch raises RuntimeError when it runs out of memory
        if not isinstance(error, MemoryError) and "allocate memory" not in str(error):
            raise
        reason = str(error).splitlines()[0][:200] if str(error) else "use smaller settings"
        line, status = f"not enough memory: {reason}", 2
    except OSError as error:
        line, status = f"{error.filename or 'the system'}: {error.strerror or error}", 2
    print(f"fianchetto: {replace_control_characters(line)}", file=sys.stderr)  # noqa: T201
    return status


def parse(words: Sequence[str]) -> Any:
    """Parse a command line into an instance of a command's dataclass.

    Raises SystemExit after printing help, the version or completions, and UserError for a mistake.
    """
    commands = CommandGroup(
        "fianchetto", help=PROGRAM_HELP, epilog=HELP_EPILOG, context_settings=CONTEXT_SETTINGS
    )
    add_version = click.version_option(package_name="fianchetto", message="fianchetto %(version)s")
    commands = add_version(commands)
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


class CommandGroup(click.Group):
    """Click's group of COMMANDS, which imports only the command that is used."""

    def get_command(self, _: click.Context, name: str) -> click.Command | None:
        """Return a command; None for an unknown name."""
        return Command(name) if name in COMMANDS else None

    def resolve_command(self, context: click.Context, words: list[str]) -> Any:
        """Find the command; for an unknown name, raise UserError with the closest one, if any."""
        if words[0] not in COMMANDS and not words[0].startswith("-"):
            near = get_close_matches(words[0], COMMANDS, n=1)
            raise UserError(
                f"there is no command {words[0]!r}" + (f"; did you mean {near[0]}?" if near else "")
            )
        return super().resolve_command(context, words)

    def format_commands(self, _: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands in two sections."""
        rows = [(name, summary) for name, (_, summary) in COMMANDS.items()]
        for title, section in (
            ("First steps", rows[:NUM_FIRST_STEPS]),
            ("More commands", rows[NUM_FIRST_STEPS:]),
        ):
            with formatter.section(title):
                formatter.write_dl(section)

    def shell_complete(self, _: click.Context, text: str) -> list[CompletionItem]:
        """Complete names without importing the commands."""
        return [
            CompletionItem(name, help=summary)
            for name, (_, summary) in COMMANDS.items()
            if name.startswith(text)
        ]


class Command(click.Command):
    """A click command generated from a dataclass; invoking it returns an instance of that class."""

    def __init__(self, name: str) -> None:
        from pipeline.cli.settings import collect_settings, find_key

        module, _, cls = COMMANDS[name][0].partition(":")
        self.cls: Any = getattr(import_module(f"pipeline.cli.commands.{module}"), cls)
        self.settings = collect_settings(self.cls)
        basic = {find_key(end, self.settings, name) for end in (*self.cls.basic.split(), "json")}
        options = {key.rpartition(".")[2]: key for key in self.settings if key in basic}
        self.keys = {**{key: key for key in self.cls.arguments}, **options}
        """Name of the click parameter -> key of the setting."""
        num_hidden = len(self.settings) - len(self.keys)
        *basic_options, json_option = (
            _make_option(option, self.settings[key]) for option, key in options.items()
        )
        print_all = self._print_all_settings
        general_options = [
            click.Option(["--set"], multiple=True, metavar="KEY=VALUE", help=SET_HELP),
            click.Option(["--config"], metavar="FILE", help=CONFIG_HELP),
            click.Option(
                ["--help-all"], is_flag=True, is_eager=True, hidden=True, callback=print_all
            ),
        ]
        for option in general_options:
            option.hidden |= not num_hidden
        arguments = [*map(self._make_argument, self.cls.arguments)]
        summary, *_ = (self.cls.__doc__ or "").split("\n\n")
        described = [
            f"{metavar}: {self.settings[key].description}"
            for key, metavar in self.cls.arguments.items()
        ]
        epilog = f"{num_hidden} more settings: --help-all lists them, --set and --config set them."
        super().__init__(
            name,
            params=[*arguments, *basic_options, *general_options, json_option],
            help="\n\n".join([" ".join(summary.split()), *described]),
            epilog=epilog if num_hidden else None,
            context_settings=CONTEXT_SETTINGS,
        )

    def invoke(self, context: click.Context) -> Any:
        """Build the dataclass from the command line. Raises UserError."""
        from pipeline.cli.settings import build_settings

        given = self._collect_values(context.params)
        required = [key for key, setting in self.settings.items() if setting.is_required]
        if missing := [key for key in required if key not in given]:
            raise UserError(f"{' and '.join(map(self._name_setting, missing))} must be given")
        return build_settings(self.cls, given, self.settings)

    def make_context(self, *words: Any, **extra: Any) -> click.Context:
        """Parse the arguments; raise UserError for an unknown option that --set accepts."""
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
        """Return the given values by key: options override --set, which overrides the YAML file."""
        from pipeline.cli.settings import GivenValue, parse_assignment, read_config, split_list

        path = params["config"]
        from_file = {} if path is None else read_config(Path(path), self.settings)
        given = dict(parse_assignment(text, self.settings) for text in params["set"])
        for name, key in self.keys.items():
            value = params[name]
            if value is None or value == ():
                continue
            if isinstance(value, tuple) and key not in self.cls.arguments:
                split = split_list if self.settings[key].splits_commas else lambda text: [text]
                value = [item for text in value for item in split(text)]
            given[key] = GivenValue(
                list(value) if isinstance(value, tuple) else value, self._name_setting(key)
            )
        replaced = self.cls.one_of if given.keys() & set(self.cls.one_of) else ()
        return {key: value for key, value in from_file.items() if key not in replaced} | given

    def _make_argument(self, key: str) -> click.Argument:
        is_list = self.settings[key].is_list
        return click.Argument(
            [key], nargs=-1 if is_list else 1, required=False, metavar=self.cls.arguments[key]
        )

    def _name_setting(self, key: str) -> str:
        """Return a setting's name on the command line: DATASET, --min-elo, or --set and its key."""
        if key in self.cls.arguments:
            return str(self.cls.arguments[key])
        names = [name for name, other in self.keys.items() if other == key]
        return f"--{names[0].replace('_', '-')}" if names else f"--set {key}"

    def _print_all_settings(self, context: click.Context, _: Any, wanted: bool) -> None:
        """If --help-all is given, print the command's docstring and all its settings, and exit."""
        if not wanted:
            return
        page = context.make_formatter()
        for paragraph in (self.cls.__doc__ or "").split("\n\n"):
            page.write_text(" ".join(paragraph.split()))
            page.write_paragraph()
        page.write_text(
            f"To set any of these: fianchetto {self.name} --set KEY=VALUE, or --config FILE with "
            "the keys nested in YAML."
        )
        page.write_paragraph()
        rows = [
            (f"{key} {_format_metavar(setting)}", f"{setting.description} {setting.shown_default}")
            for key, setting in self.settings.items()
        ]
        page.write_dl(rows, col_max=34)
        click.echo(page.getvalue().rstrip())
        context.exit()


def _format_metavar(setting: "Setting") -> str:
    return "|".join(setting.choices) or TYPE_METAVARS[setting.item_type] + (
        ",..." if setting.is_list and setting.splits_commas else ""
    )


def _make_option(name: str, setting: "Setting") -> click.Option:
    """Return the click option of a setting; its value stays text (see pipeline.cli.settings)."""
    flag, text = f"--{name.replace('_', '-')}", f"{setting.summary} {setting.shown_default}".strip()
    if setting.value_type is bool:
        flags = f"{flag}/--no-{name.replace('_', '-')}" if setting.default else flag
        return click.Option([flags, name], is_flag=True, default=None, help=text)
    kind: Any = click.Path() if setting.item_type is Path else str
    return click.Option(
        [flag, name],
        type=click.Choice(setting.choices) if setting.choices else kind,
        multiple=setting.is_list,
        metavar=_format_metavar(setting),
        help=text,
    )
