"""Errors in data and settings; each message says what is wrong and what to do."""

from collections.abc import Mapping
from typing import Any

from engine.errors import UserError


class ConfigError(UserError):
    """Raised for settings that are invalid or contradict each other."""


class DumpError(UserError):
    """Raised for a dump that cannot be read at all."""


class DamagedError(UserError):
    """Raised for a truncated or damaged archive; the games before the damage are kept."""


class DatasetError(UserError):
    """Raised for a directory that is not a dataset of this version or is damaged."""


class OtherDumpError(DatasetError):
    """Raised for a dataset that was made, or begun, from another dump or by another version."""

    code = "taken"


class OtherSettingsError(DatasetError):
    """Raised for a dataset that was made, or begun, with other settings."""

    code = "taken"


class IngestError(UserError):
    """Raised if an ingest cannot be completed; finished shards are kept."""


class FetchError(UserError):
    """Raised for a remote file that cannot be fetched; the bytes received are kept."""


class SourceChangedError(FetchError):
    """Raised for a remote file that was replaced by another version while it was read."""


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
