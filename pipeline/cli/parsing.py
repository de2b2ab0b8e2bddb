"""Command lines: which command a word names, the options of a command, and every mistake as one sentence.

A command's module is imported when the command is named, so that help and mistakes are there at once.
"""

import contextlib
import io
import re
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from functools import partial
from importlib import import_module
from pathlib import Path
from textwrap import fill
from types import UnionType
from typing import Any, Union, get_args, get_type_hints

from engine.errors import UserError
from pipeline.cli.help import columns, describe, help_of

EXITS = """Exit status: 0 success; 1 an incomplete result (a damaged archive, a difference found); 2 an error, explained in \
one line; 130 stopped by Ctrl-C, 143 by SIGTERM: where a command can be continued, the same command continues it."""

COMMANDS = {
    "fetch": ("commands.fetch:Fetch", "download dumps: months of Lichess, or any URL"),
    "ingest": ("commands.data:Ingest", "turn PGN dumps into a dataset of positions"),
    "train": ("commands.training:Train", "train a network on datasets"),
    "report": ("commands.training:Report", "measure how often a network finds people's moves"),
    "show": ("commands.data:Show", "show a position as the network reads it"),
    "uci": ("commands.play:Uci", "play in a chess GUI"),
    "verify": ("commands.audit:Verify", "compare datasets with their hashes and dumps"),
    "audit": ("commands.audit:Audit", "count duplicates, leaks and drift of datasets"),
    "convert": ("commands.convert:Convert", "store a dataset's planes in another form"),
    "rows": ("commands.convert:Rows", "show or write rows as FEN and moves"),
    "join": ("commands.audit:Join", "join datasets into a training set"),
    "compare": ("commands.training:Compare", "train several networks alike and compare them"),
    "presets": ("commands.networks:Presets", "list the networks (also: networks)"),
    "export": ("commands.networks:Export", "write a network as ONNX"),
    "selfplay": ("commands.selfplay:SelfPlay", "make a dataset of games against itself"),
    "reanalyse": ("commands.selfplay:Reanalyse", "search positions of datasets with a checkpoint"),
    "finetune": ("commands.selfplay:Finetune", "make a network stronger by self-play"),
    "arena": ("commands.arena:Arena", "play a match between two players"),
    "ladder": ("commands.arena:Ladder", "measure strength against Stockfish"),
    "judge": ("commands.arena:Judge", "compare players' moves with an engine's evaluations"),
    "sample": ("commands.data:Sample", "make a dump like the embedded one"),
    "sweep": ("commands.fetch:Sweep", "delete what killed processes left in datasets"),
    "bench": ("commands.bench:Bench", "measure this machine"),
    "completion": ("completion:Completion", "print a script that completes commands in a shell"),
}
"""Module and class of each command, below pipeline.cli, and what it does; the first six are a beginner's."""
ALIASES = {"networks": "presets"}
BEGINNER = 6


def command_class(name: str) -> type[Any]:
    """Import and return the class of a command."""
    module, _, name = COMMANDS[name][0].partition(":")
    return getattr(import_module(f"pipeline.cli.{module}"), name)  # type: ignore[no-any-return]


def _listed(names: Sequence[str]) -> str:
    """Return the lines of some commands for a help text."""
    return "\n".join(f"  {name:<12}{COMMANDS[name][1]}" for name in names)


def _front(words: Sequence[str]) -> str | None:
    """Return what is printed where no command is named: the first steps, all commands, or the version."""
    if not words:
        first = _listed(list(COMMANDS)[:BEGINNER])
        more = "fianchetto COMMAND --help explains a command; fianchetto --help lists all."
        return f"Chess game databases into trained players.\n\n{first}\n\n{more}"
    if words[0] in ("-h", "--help", "help"):
        usage = "usage: fianchetto COMMAND [OPTIONS]\n\nChess game databases into trained players."
        more = f"fianchetto COMMAND --help explains a command.\n\n{fill(EXITS, columns())}"
        return f"{usage}\n\n{_listed(list(COMMANDS))}\n\n{more}"
    if words[0] == "--version":
        from importlib.metadata import version

        return f"fianchetto {version('fianchetto')}"
    return None


def parse(words: Sequence[str]) -> Any:
    """Return the command that a command line describes.

    Raises SystemExit after printing help, and UserError with one sentence for a mistake.
    """
    if (text := _front(words)) is not None:
        print(text)  # noqa: T201
        raise SystemExit(0)
    name = ALIASES.get(words[0], words[0])
    if name not in COMMANDS:
        near = get_close_matches(name, [*COMMANDS, *ALIASES], n=1)
        raise UserError(
            f"there is no command {name!r}{f': did you mean {near[0]}?' if near else ''} (fianchetto --help lists them all)"
        )
    import tyro

    command = command_class(name)
    read = partial(tyro.cli, command, prog=f"fianchetto {name}", args=words[1:], registry=_rules(command, words[1:]))
    try:
        with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
            return read()
    except SystemExit as ended:
        if not ended.code:  # --help
            describe(command)
            print(help_of(read))  # noqa: T201
            raise
    caught = io.StringIO()
    with contextlib.suppress(SystemExit), contextlib.redirect_stderr(caught), contextlib.redirect_stdout(_Utf8()):
        read()
    options = set(re.findall(r"--[a-z0-9.-]+", help_of(partial(read, args=["--help"]))))
    raise UserError(f"{_sentence(caught.getvalue(), options)} (fianchetto {name} --help explains)")


class _Utf8(io.StringIO):
    """An output for which tyro draws the boxes that `_sentence` reads, whatever the terminal's encoding is called."""

    encoding = "utf-8"


def _rules(command: type[Any], words: Sequence[str]) -> Any:
    """Return how values are written: a list as `a,b`, an optional value as the value itself.

    The older form `--speeds blitz rapid` is read too where no positional argument can follow: in commands without any, and
    where the command line begins with them.
    """
    import tyro
    from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

    hints = get_type_hints(command, include_extras=True).values()
    positional = any(tyro.conf.Positional in getattr(hint, "__metadata__", ()) for hint in hints)
    several = not positional or not words or not words[0].startswith("-")
    registry = ConstructorRegistry()

    @registry.primitive_rule
    def comma_separated(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
        if info.type_origin is not tuple or get_args(info.type)[1:] != (...,) or tyro.conf.Positional in info.markers:
            return None
        one = _spec(get_args(info.type)[0], info)

        def read(given: list[str]) -> tuple[Any, ...]:
            return tuple(one.instance_from_str([word]) for word in _items(given))

        return PrimitiveConstructorSpec(
            nargs="*" if several else 1,
            metavar=f"{one.metavar},...",
            instance_from_str=read,
            is_instance=lambda value: isinstance(value, tuple),
            str_from_instance=lambda value: [",".join(one.str_from_instance(item)[0] for item in value)],
        )

    @registry.primitive_rule
    def optional(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
        kinds = get_args(info.type)
        if info.type_origin not in (Union, UnionType) or len(kinds) != 2 or kinds[1] is not type(None):
            return None
        one = _spec(kinds[0], info)
        return PrimitiveConstructorSpec(
            nargs=one.nargs,
            metavar=one.metavar,
            instance_from_str=lambda given: None if given == ["None"] else one.instance_from_str(given),
            is_instance=lambda value: value is None or bool(one.is_instance(value)),
            str_from_instance=lambda value: ["None"] if value is None else one.str_from_instance(value),
            choices=None if one.choices is None else (*one.choices, "None"),
        )

    def _spec(kind: Any, info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any]:
        found = ConstructorRegistry.get_primitive_spec(PrimitiveTypeInfo.make(kind, info.markers))
        assert isinstance(found, PrimitiveConstructorSpec)
        return found

    return registry


def _items(given: Sequence[str]) -> list[str]:
    """Split `a,b` at its commas, but for an existing file of that name and commas in the value of NAME=VALUE."""
    if len(given) > 1:
        if any("," in word and "=" not in word for word in given):
            raise ValueError(f"a list is written {','.join(given)}, without spaces")
        return list(given)
    if given and given[0] and _is_path(given[0]):
        return list(given)
    words = [word for word in "".join(given).split(",") if word]
    if "=" not in "".join(words[:1]):
        return words
    return re.split(r",(?=[^,=]+=)", given[0])


def _is_path(name: str) -> bool:
    """Return whether a file or folder has this name; a long list of names is none, and too long to ask about."""
    try:
        return Path(name).exists()
    except OSError:
        return False


def _meant(unknown: str, tyros: Sequence[str], options: Iterable[str]) -> str:
    """Return the option that is meant by an unknown one, "" where none is like it.

    One with the same last word goes before those that tyro names, and these before one that is spelled much alike.
    """
    unknown = unknown.partition("=")[0].replace("_", "-")
    word = unknown.lstrip("-").rpartition(".")[2]
    same = [option for option in options if option.lstrip("-").rpartition(".")[2] == word]
    return next(iter([*sorted(same, key=len), *tyros, *get_close_matches(unknown, sorted(options), n=1)]), "")


def _sentence(boxed: str, options: Iterable[str]) -> str:
    """Return what is wrong as one sentence, from the box that tyro draws around an error."""
    text = "\n".join(line.strip("│").rstrip() for line in boxed.splitlines() if not line.startswith(("╭", "╰")))
    message, *rest = (re.split(r"\n ─+\n", text)) or [""]
    section = message if "Missing from" in message else "".join(rest[:1])
    named = [line.split()[0] for line in section.splitlines() if re.match(" {5}[^ ]", line)]
    said = " ".join(message.split())
    if said.startswith("Missing from"):
        return f"{' and '.join(named)} must be given"
    if found := re.fullmatch(r"Unrecognized options: (.*)", said):
        words = found[1].split(", ")
        unknown = next((word for word in words if word.startswith("-")), None)
        if unknown is None:
            return f"{words[0]!r} is one argument too many"
        meant = _meant(unknown, named if rest[1:] else [], options)
        return f"{unknown} is not an option{f': did you mean {meant}?' if meant else ''}"
    if found := re.fullmatch(r"invalid choice (.*) for argument '(.*)'. Expected one of \((.*)\)\.", said):
        choices = [choice for choice in re.findall("'([^']*)'", found[3]) if choice != "None"]
        return f"{found[2]} is one of {', '.join(choices)}, not {found[1]}"
    if found := re.match(r"Missing value for argument '(.*?)'", said):
        return f"{found[1]} needs a value"
    said = re.sub(r"invalid literal for int\(\) with base 10: (.*)", r"\1 is not a whole number", said)
    said = re.sub(r"could not convert string to float: (.*)", r"\1 is not a number", said)
    return re.sub(r"^Error parsing (?!--)\S+: |^Error parsing ", "", said)
