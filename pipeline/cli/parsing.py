"""Command lines: the table of commands, their options, and every mistake as one sentence.

A command's module is imported when the command is named, so that help and mistakes appear at once.
"""

import os
from collections.abc import Sequence
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any

from engine.errors import UserError
from pipeline.cli.help import columns

if TYPE_CHECKING:
    import click

    from pipeline.cli.settings import Given, Setting

EXITS = """Exit status: 0 success; 1 an incomplete result (a damaged archive, a difference found); 2 an error, explained in \
one line; 130 stopped by Ctrl-C, 143 by SIGTERM. The same command continues work that was stopped."""

COMMANDS = {
    "fetch": ("fetch:Fetch", "download dumps: months of Lichess, or any URL"),
    "ingest": ("data:Ingest", "turn PGN dumps into a dataset of positions"),
    "train": ("training:Train", "train a network on datasets"),
    "report": ("training:Report", "measure how often a network finds people's moves"),
    "show": ("data:Show", "show a position as the network reads it"),
    "uci": ("play:Uci", "play in a chess GUI"),
    "verify": ("audit:Verify", "compare datasets with their hashes and dumps"),
    "audit": ("audit:Audit", "count duplicates, leaks and drift of datasets"),
    "convert": ("convert:Convert", "store a dataset's planes in another form"),
    "rows": ("convert:Rows", "print or write rows as FEN and moves"),
    "join": ("audit:Join", "join datasets into a training set"),
    "presets": ("networks:Presets", "list the networks"),
    "export": ("networks:Export", "write a network as ONNX"),
    "selfplay": ("selfplay:SelfPlay", "make a dataset of games against itself"),
    "reanalyse": ("selfplay:Reanalyse", "search positions of datasets with a checkpoint"),
    "finetune": ("selfplay:Finetune", "make a network stronger by self-play"),
    "arena": ("arena:Arena", "play matches between players"),
    "judge": ("arena:Judge", "compare players' moves with an engine's evaluations"),
    "warmup": ("warmup:Warmup", "compile all kernels now, so that nothing waits for it later"),
    "sweep": ("fetch:Sweep", "delete what killed processes left in datasets"),
    "bench": ("bench:Bench", "measure this machine"),
}
"""Module and class of each command, below pipeline.cli.commands, and what it does; the first six are a beginner's."""
BEGINNER = 6
COMPLETE = "_FIANCHETTO_COMPLETE"
"""Environment variable by which a shell asks for completions."""


def command_class(name: str) -> type[Any]:
    """Import and return the class of a command."""
    module, _, name = COMMANDS[name][0].partition(":")
    return getattr(import_module(f"pipeline.cli.commands.{module}"), name)  # type: ignore[no-any-return]


def parse(words: Sequence[str]) -> Any:
    """Return the command that a command line describes.

    Raises SystemExit after printing help, and UserError with one sentence for a mistake.
    """
    if COMPLETE in os.environ:
        raise SystemExit(_complete())
    if (text := _front(words)) is not None:
        print(text)  # noqa: T201
        raise SystemExit(0)
    name, *rest = words
    if name not in COMMANDS:
        near = get_close_matches(name, COMMANDS, n=1)
        raise UserError(
            f"there is no command {name!r}{f': did you mean {near[0]}?' if near else ''} (fianchetto --help lists them all)"
        )
    try:
        return CommandLine(name).read(rest)
    except UserError as error:
        raise UserError(f"{error} (fianchetto {name} --help explains)") from error


class CommandLine:
    """The options of a command, and what they set."""

    def __init__(self, name: str) -> None:
        from pipeline.cli.settings import find_key, settings_of

        self.name, self.cls = name, command_class(name)
        self.settings = settings_of(self.cls)
        self.arguments: dict[str, str] = {key: key for key in self.cls.arguments}
        """Parameter of each positional argument -> its key."""
        keys = [find_key(end, self.settings, name) for end in (*self.cls.basic.split(), "json")]
        self.options = {key.rpartition(".")[2]: key for key in keys}
        """Parameter of each option -> its key."""

    def read(self, words: Sequence[str]) -> Any:
        """Return the command; raises SystemExit after printing help, and UserError."""
        import click

        from pipeline.cli.settings import build

        command = self.command()
        try:
            with command.make_context(f"fianchetto {self.name}", list(words)) as context:
                if context.args:
                    raise UserError(f"{context.args[0]!r} is one argument too many")
                given = self._collect_values(context.params)
        except click.exceptions.Exit as ended:
            raise SystemExit(ended.exit_code) from None
        except click.NoSuchOption as error:
            raise UserError(self._unknown(error.option_name)) from error
        except click.BadOptionUsage as error:
            flag = any(
                error.option_name in option.opts and getattr(option, "is_flag", False) for option in command.params
            )
            raise UserError(f"{error.option_name} {'takes no' if flag else 'needs a'} value") from error
        missing = [key for key, setting in self.settings.items() if setting.required and key not in given]
        if missing:
            raise UserError(f"{' and '.join(map(self._label, missing))} must be given")
        return build(self.cls, given, self.settings)

    def command(self) -> "click.Command":
        """Return the command as click knows it."""
        import click

        arguments = [
            click.Argument(
                [key], nargs=-1 if self.settings[key].several else 1, required=False, metavar=metavar, default=None
            )
            for key, metavar in self.cls.arguments.items()
        ]
        options = [_option(name, self.settings[key]) for name, key in self.options.items()]
        others = len(self.settings) - len(arguments) - len(options)
        hidden = others == 0
        several = click.Option(
            ["--set"], multiple=True, metavar="KEY=VALUE", hidden=hidden, help="Set any setting; repeat it for several."
        )
        config = click.Option(["--config"], metavar="FILE", hidden=hidden, help="Read settings from a YAML file.")
        everything = click.Option(
            ["--help-all"], is_flag=True, is_eager=True, expose_value=False, hidden=True, callback=self._print_all
        )
        first, *_ = (self.cls.__doc__ or "").split("\n\n")
        positional = [f"{metavar}: {self.settings[key].text}" for key, metavar in self.cls.arguments.items()]
        more = f"{others} more settings: --help-all lists them, --set and --config set them."
        return click.Command(
            self.name,
            params=[*arguments, *options[:-1], several, config, options[-1], everything],
            help="\n\n".join([" ".join(first.split()), *positional]),
            epilog=None if hidden else more,
            context_settings={"allow_extra_args": True, "max_content_width": columns(), "terminal_width": columns()},
        )

    def _collect_values(self, params: dict[str, Any]) -> "dict[str, Given]":
        """Return the values that a command line gives: those of options go before --set, and those before the file's."""
        from pipeline.cli.settings import Given, read_assignment, read_config, split_list

        path = params["config"]
        filed = {} if path is None else read_config(Path(path), self.settings)
        given = dict(read_assignment(text, self.settings) for text in params["set"])
        for name, key in {**self.arguments, **self.options}.items():
            value = params[name]
            if value is None or value == ():
                continue
            if isinstance(value, tuple) and name in self.options:
                value = [item for text in value for item in split_list(text)]
            given[key] = Given(list(value) if isinstance(value, tuple) else value, self._label(key))
        if given.keys() & set(self.cls.one_of):
            filed = {key: value for key, value in filed.items() if key not in self.cls.one_of}
        return filed | given

    def _label(self, key: str) -> str:
        """Return how a command line names a setting: DATASET, --min-elo, or its key."""
        if key in self.arguments:
            return str(self.cls.arguments[key])
        names = [name for name, other in self.options.items() if other == key]
        return f"--{names[0].replace('_', '-')}" if names else f"--set {key}"

    def _unknown(self, option: str) -> str:
        """Return what is wrong with an unknown option: it is set by --set, or another one was meant."""
        from pipeline.cli.settings import suggestion

        word = option.lstrip("-").replace("-", "_")
        keys = [key for key in self.settings if key.rpartition(".")[2] == word or key == word]
        if keys:
            return f"{option} is not an option: use {' or '.join(f'--set {key}=VALUE' for key in keys)}"
        near = get_close_matches(word, [*self.options, "set", "config"], n=1)
        if near:
            return f"{option} is not an option; did you mean --{near[0].replace('_', '-')}?"
        return f"{option} is not an option{suggestion(word, self.settings)}"

    def _print_all(self, context: "click.Context", _: Any, wanted: bool) -> None:
        """Print every setting, and end."""
        if wanted:
            print(self.all_settings())  # noqa: T201
            context.exit()

    def all_settings(self) -> str:
        """Return the text of `--help-all`: the whole docstring, and every setting with its type, default and sentences."""
        from click import HelpFormatter

        page = HelpFormatter(width=columns())
        for paragraph in (self.cls.__doc__ or "").split("\n\n"):
            page.write_text(" ".join(paragraph.split()))
            page.write_paragraph()
        page.write_text(f"Set by fianchetto {self.name} --set KEY=VALUE, or nested in a YAML file by --config FILE.")
        page.write_paragraph()
        page.write_dl(
            [(f"{key} {one.metavar}", f"{one.text} {one.shown_default}".strip()) for key, one in self.settings.items()],
            col_max=34,
        )
        return page.getvalue().rstrip()


def _option(name: str, setting: "Setting") -> "click.Option":
    """Return a setting as an option; its values stay text, which pipeline.cli.settings converts."""
    import click

    flag, text = f"--{name.replace('_', '-')}", setting.summary
    if setting.kind is bool:
        both = f"{flag}/--no-{name.replace('_', '-')}" if setting.default else flag
        return click.Option([both, name], is_flag=True, default=None, help=text)
    return click.Option(
        [flag, name], multiple=setting.several, metavar=setting.metavar, help=text, shell_complete=_values(setting)
    )


def _values(setting: "Setting") -> Any:
    """Return a function that completes the values of a setting: its words, or names of files."""
    from click.shell_completion import CompletionItem

    def complete(_: Any, __: Any, text: str) -> list[CompletionItem]:
        if setting.choices:
            return [CompletionItem(word) for word in setting.choices if word.startswith(text)]
        return [CompletionItem(text, type="file")] if "PATH" in setting.metavar else []

    return complete


def _complete() -> int:
    """Print completions, or the script that asks for them: a shell evaluates `_FIANCHETTO_COMPLETE=bash_source fianchetto`."""
    import click
    from click.shell_completion import CompletionItem, shell_complete

    class Group(click.Group):
        def get_command(self, _: click.Context, name: str) -> click.Command | None:
            return CommandLine(name).command() if name in COMMANDS else None

        def list_commands(self, _: click.Context) -> list[str]:
            return list(COMMANDS)

        def shell_complete(self, _: click.Context, text: str) -> list[CompletionItem]:
            return [CompletionItem(name, help=does) for name, (_, does) in COMMANDS.items() if name.startswith(text)]

    return shell_complete(Group("fianchetto"), {}, "fianchetto", COMPLETE, os.environ[COMPLETE])


def _front(words: Sequence[str]) -> str | None:
    """Return what is printed where no command is named: the first steps, all commands, or the version."""
    if not words:
        first = _listed(list(COMMANDS)[:BEGINNER])
        more = "fianchetto COMMAND --help explains a command; fianchetto --help lists all."
        return f"Chess game databases into trained players.\n\n{first}\n\n{more}"
    if words[0] in ("-h", "--help", "help"):
        usage = "usage: fianchetto COMMAND [OPTIONS]\n\nChess game databases into trained players."
        more = f"fianchetto COMMAND --help explains a command.\n\n{fill(EXITS, columns())}"
        shells = f'Completion in a shell: eval "$({COMPLETE}=bash_source fianchetto)"; zsh likewise.'
        return f"{usage}\n\n{_listed(list(COMMANDS))}\n\n{more}\n\n{shells}"
    if words[0] == "--version":
        from importlib.metadata import version

        return f"fianchetto {version('fianchetto')}"
    return None


def _listed(names: Sequence[str]) -> str:
    """Return the lines of some commands for a help text."""
    return "\n".join(f"  {name:<12}{COMMANDS[name][1]}" for name in names)
