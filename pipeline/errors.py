"""Errors in data and settings; each message says what is wrong and what to do."""

from collections.abc import Mapping
from typing import Any

from engine.errors import UserError


class ConfigError(UserError):
    """A configuration that contradicts itself."""


class DumpError(UserError):
    """A dump that cannot be read at all."""


class DamagedError(UserError):
    """An archive that is truncated or damaged after some good games, which are kept."""


class DatasetError(UserError):
    """A directory that is not a dataset of this version, or differs from its manifest."""


class OtherDumpError(DatasetError):
    """A dataset, complete or not, that was made from another dump or by another version."""

    code = "taken"


class OtherSettingsError(DatasetError):
    """A dataset, complete or not, that was made with other settings."""

    code = "taken"


class IngestError(UserError):
    """An ingest that could not be completed; finished shards are kept."""


class FetchError(UserError):
    """A remote file that cannot be fetched; the bytes received are kept."""


class SourceChangedError(FetchError):
    """A remote file that was replaced by another version."""


class StoreError(OSError):
    """A store that cannot be reached or refuses a request; an OSError, like a full disk."""


class Stopped(UserError):  # noqa: N818 - a stop is not an error
    """Work that stopped when asked to; finished parts are kept."""

    code = "stopped"


class DifferenceError(UserError):
    """A dataset that fails verification; `result` lists the differences."""

    def __init__(self, message: str, result: Mapping[str, Any]) -> None:
        """Store the message and the result."""
        super().__init__(message)
        self.result = dict(result)
