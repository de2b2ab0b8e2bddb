"""Checks made before a command starts, so that a mistake in its last step's options costs no time."""

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from pipeline.errors import ConfigError


def require_folder(folder: Path) -> None:
    """Raise ConfigError for a folder that files could not be written into: one that is a file, or may not be written."""
    there = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    if not there.is_dir():
        raise ConfigError(f"{folder} cannot be written: {there} is a file and not a folder; choose another --out")
    if not os.access(there, os.W_OK | os.X_OK):
        raise ConfigError(f"{folder} cannot be written: this user may not write into {there}; choose another --out")


def require_program(command: Sequence[str]) -> None:
    """Raise ConfigError for a command whose program is not there."""
    if shutil.which(command[0]) is None:
        raise ConfigError(f"{command[0]} is not installed, or not on the path: name the command of a UCI engine")
