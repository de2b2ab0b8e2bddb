"""What can go wrong with data and settings, by name; each message says what was wrong and what to do."""

from collections.abc import Mapping
from typing import Any

from engine.errors import UserError


class ConfigError(UserError):
    """A configuration that contradicts itself."""


class DumpError(UserError):
    """A dump that cannot be read at all."""


class DamagedError(UserError):
    """An archive that breaks off or turns to nonsense after some good games, which are kept."""


class DatasetError(UserError):
    """A directory that is no dataset of this version, or does not hold what its manifest says."""


class OtherDumpError(DatasetError):
    """A dataset, finished or begun, of a dump that has changed since, of another one, or made by other code."""


class IngestError(UserError):
    """An ingest that could not be finished; what it finished is kept."""


class LostError(UserError):
    """A training run whose processes were lost too often; its last save is kept."""


class FetchError(UserError):
    """A file of the web or of an object store that cannot be had; what came of it is kept."""


class ChangedError(FetchError):
    """A file that was replaced by another version while it was read, or since."""


class StoreError(OSError):
    """A store that cannot be reached, or refuses; an OSError, as a full disk is one."""


class Stopped(UserError):  # noqa: N818 - not an error of anybody
    """Work that was asked to stop, and did, keeping what was done."""


class DifferenceError(UserError):
    """A dataset that is not what it should be; `result` says in which ways."""

    def __init__(self, message: str, result: Mapping[str, Any]) -> None:
        """Take the line for a person and the whole answer."""
        super().__init__(message)
        self.result = dict(result)
