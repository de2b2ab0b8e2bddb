"""The command completion: a script for the shell, made by tyro."""

import contextlib
import io
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import tyro

from pipeline.cli.commands.base import Common
from pipeline.cli.parsing import COMMANDS, command_class


@dataclass(frozen=True, kw_only=True, slots=True)
class Completion(Common):
    """Print a script that completes commands and options: eval "$(fianchetto completion bash)"."""

    shell: tyro.conf.Positional[Annotated[Literal["bash", "zsh"], tyro.conf.arg(metavar="SHELL")]]
    """bash or zsh."""

    def run(self) -> dict[str, Any]:
        """Return the script."""
        commands: dict[str, Any] = {name: command_class(name) for name in COMMANDS}
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed), contextlib.suppress(SystemExit):
            tyro.extras.subcommand_cli_from_dict(
                commands, prog="fianchetto", args=["--tyro-print-completion", self.shell]
            )
        return {"text": printed.getvalue()}
