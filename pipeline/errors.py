"""Errors in data and settings; each message says what is wrong and what to do."""

from collections.abc import Mapping
from typing import Any

from engine.errors import UserError


class ConfigError(UserError):
    """Raised for settings that are invalid or contradict each other."""


class DumpError(UserError):
    """Raised for a dump that cannot be read at all, or not together with the other dumps."""


class DamagedError(UserError):
    """Raised for a truncated or damaged archive; the games before the damage are kept."""


class DatasetError(UserError):
    """Raised for a dataset that is missing, damaged, empty, outdated, or otherwise unsuitable."""


class OtherDumpError(DatasetError):
    """Raised if a dataset was made from other or changed dumps, or with another version of rows."""

    code = "taken"


class OtherSettingsError(DatasetError):
    """Raised if a dataset was made with other settings, or begun from dumps of other names."""

    code = "taken"


class IngestError(UserError):
    """Raised if an ingest or a parallel job cannot be completed; finished work is kept."""


class FetchError(UserError):
    """Raised for a remote file that cannot be read or downloaded."""


class SourceChangedError(FetchError):
    """Raised for a remote file that was replaced while it was read, or cannot be resumed."""


class StoreError(OSError):
    """Raised if a store cannot be reached or refuses a request; an OSError, like a full disk."""


class Stopped(UserError):  # noqa: N818 - a stop is not an error
    """Raised if work ends early because `stop` returned True; finished parts are kept."""

    code = "stopped"


class DifferenceError(UserError):
    """Raised for a dataset that fails verification; `result` lists the differences."""

    def __init__(self, message: str, result: Mapping[str, Any]) -> None:
        super().__init__(message)
        self.result = dict(result)
