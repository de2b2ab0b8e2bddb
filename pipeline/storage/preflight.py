"""Check settings before a command starts, so that errors in a late step are reported early."""

import os
import resource
import shlex
import shutil
from pathlib import Path

from pipeline.errors import ConfigError

ADDRESS_SPACE = 4 << 30
"""Bytes of address space that native libraries reserve, mostly without using them."""

DEBIAN_GAMES_FOLDER = "/usr/games"
"""Folder in which Debian installs engines; it may be missing from PATH."""


def require_folder(folder: Path) -> None:
    """Raise ConfigError if a folder is not writable."""
    there = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    if not there.is_dir():
        raise ConfigError(f"{folder} cannot be written: {there} is a file; choose another --out")
    if not os.access(there, os.W_OK | os.X_OK):
        problem = f"this user has no permission to write to {there}"
        raise ConfigError(f"{folder} cannot be written: {problem}; choose another --out")


def require_address_space() -> None:
    """Raise ConfigError if `ulimit -v` is so low that native libraries would abort the process."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit != resource.RLIM_INFINITY and limit < ADDRESS_SPACE:
        raise ConfigError(
            f"this process may use {limit / 2**30:.1f} GiB of address space (ulimit -v): raise "
            f"the limit to {ADDRESS_SPACE >> 30} GiB, and limit memory with a control group "
            "instead"
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
    """Return an engine's command with its full path, found in PATH or DEBIAN_GAMES_FOLDER."""
    name, *arguments = command
    found = shutil.which(name) or shutil.which(name, path=DEBIAN_GAMES_FOLDER)
    return (found or name, *arguments)


def is_installed(engine: str) -> bool:
    """Return whether an engine's program is installed."""
    command = tuple(shlex.split(engine))
    return bool(command) and shutil.which(find_engine(command)[0]) is not None
