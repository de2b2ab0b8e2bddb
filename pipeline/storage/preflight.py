"""Check settings before a command starts, so that errors in a late step are reported early."""

import os
import resource
import shlex
import shutil
from pathlib import Path

from pipeline.errors import ConfigError

MIN_ADDRESS_SPACE_BYTES = 4 << 30
"""Address space that native libraries need: they reserve it, mostly without using it."""

DEBIAN_GAMES_FOLDER = "/usr/games"
"""Folder where Debian installs chess engines; it may be missing from PATH."""


def require_writable_folder(folder: Path) -> None:
    """Raise ConfigError unless a folder can be written, or created."""
    existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not existing.is_dir():
        raise ConfigError(f"{folder} cannot be written: {existing} is a file; choose another --out")
    if not os.access(existing, os.W_OK | os.X_OK):
        problem = f"this user has no permission to write to {existing}"
        raise ConfigError(f"{folder} cannot be written: {problem}; choose another --out")


def require_address_space() -> None:
    """Raise ConfigError if `ulimit -v` is so low that native libraries would abort the process."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit != resource.RLIM_INFINITY and limit < MIN_ADDRESS_SPACE_BYTES:
        raise ConfigError(
            f"this process may use {limit / 2**30:.1f} GiB of address space (ulimit -v): raise "
            f"the limit to {MIN_ADDRESS_SPACE_BYTES >> 30} GiB, and limit memory with a control "
            "group instead"
        )


def require_utf8(name: str) -> None:
    """Raise ConfigError for a name that is not UTF-8, which could not be stored in reports."""
    try:
        name.encode()
    except UnicodeEncodeError as error:
        shown = name.encode(errors="surrogateescape").decode("ascii", "backslashreplace")
        raise ConfigError(
            f"the name {shown!r} is not UTF-8: rename it, for example with convmv"
        ) from error


def find_engine(command: tuple[str, ...]) -> tuple[str, ...]:
    """Return a chess engine's command with the full path of its program.

    The program is looked up in PATH and DEBIAN_GAMES_FOLDER; a missing one keeps its name.
    """
    name, *arguments = command
    found = shutil.which(name) or shutil.which(name, path=DEBIAN_GAMES_FOLDER)
    return (found or name, *arguments)


def is_installed(engine: str) -> bool:
    """Return whether the program of a chess engine's command line is installed."""
    command = tuple(shlex.split(engine))
    return bool(command) and shutil.which(find_engine(command)[0]) is not None
