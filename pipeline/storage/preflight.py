"""Checks made before a command starts, so that a mistake in its last step's options costs no time."""

import os
import shlex
import shutil
from collections.abc import Sequence
from pathlib import Path

from pipeline.errors import ConfigError

DEBIANS_GAMES = "/usr/games"
"""Where Debian installs engines, which need not be on the path."""


def require_folder(folder: Path) -> None:
    """Raise ConfigError for a folder that files could not be written into: one that is a file, or may not be written."""
    there = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    if not there.is_dir():
        raise ConfigError(f"{folder} cannot be written: {there} is a file and not a folder; choose another --out")
    if not os.access(there, os.W_OK | os.X_OK):
        raise ConfigError(f"{folder} cannot be written: this user may not write into {there}; choose another --out")


def installed(command: tuple[str, ...]) -> tuple[str, ...]:
    """Return an engine's command with its full path if it is found; Debian's folder of games is searched too."""
    found = shutil.which(command[0]) or shutil.which(command[0], path=DEBIANS_GAMES) or command[0]
    return (found, *command[1:])


def is_installed(engine: str) -> bool:
    """Return whether the program of an engine's command is there, Debian's folder of games included."""
    command = tuple(shlex.split(engine))
    return bool(command) and shutil.which(installed(command)[0]) is not None


def require_program(command: Sequence[str]) -> None:
    """Raise ConfigError for a command whose program is not there."""
    if shutil.which(command[0]) is None:
        raise ConfigError(f"{command[0]} is not installed, or not on the path: name the command of a UCI engine")
