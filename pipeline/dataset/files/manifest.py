"""Read and check the JSON files of datasets; the manifest is the file that is published last.

A file is read with engine/json_files.py, checked once against its schema, and used as a plain dict.
Additional fields are allowed, since some commands add their own. Stability: the manifest records
FORMAT_VERSION, ENCODING_VERSION and `moves_hash()`. A changed column or bit is a new version. A
field is required only if every file of the accepted version has it.
"""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path, PurePath
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from engine.encoding.planes import ENCODING_VERSION, moves_hash
from engine.json_files import read_json, safe_text, validate_content
from pipeline.dataset.files.columns import (
    FORMAT_VERSION,
    GAMES,
    MANIFEST,
    ROW_GROUP,
    SPLITS,
    PlaneFormat,
)
from pipeline.errors import DatasetError
from pipeline.storage.job_folder import BUILDING

MAX_MANIFEST_BYTES = 1 << 28
"""Maximum bytes of a manifest."""
MAX_GAMES = 1 << 32
"""Maximum number of games, since the column `game` is a uint32."""


def _require_file_name(value: object) -> object:
    """Return a plain file name; raises ValueError for a path, which could leave the dataset."""
    bare = isinstance(value, str) and value not in ("", ".", "..") and PurePath(value).name == value
    if not bare or not str(value).isprintable() or "\\" in str(value):
        raise ValueError(f"names a file outside the dataset: {safe_text(value)}")
    return value


def _require_one_line(value: object) -> object:
    if not isinstance(value, str) or not value or not value.isprintable():
        raise ValueError(f"{safe_text(value)} is not a valid name")
    return value


Count = Annotated[int, Field(ge=0, le=1 << 53)]
GameCount = Annotated[int, Field(ge=0, le=MAX_GAMES)]
Number = Annotated[float, Field(allow_inf_nan=False)]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
FileName = Annotated[str, BeforeValidator(_require_file_name), Field(max_length=200)]
Name = Annotated[str, BeforeValidator(_require_one_line), Field(max_length=4096)]
Text = Annotated[str, Field(max_length=1 << 16)]


class Schema(BaseModel):
    """Base of the schemas: values are not converted to other types, and more fields are allowed."""

    model_config = ConfigDict(strict=True, extra="ignore")


class FileEntry(Schema):
    """A file of a dataset, as listed in its manifest or in the note of a chunk."""

    name: FileName
    split: Literal["train", "val", "test"] | None
    rows: Count
    bytes: Count
    sha256: Sha256


class SourceEntry(Schema):
    """A dump that a dataset was made from."""

    name: Text
    bytes: Count
    sha256: Sha256
    damage: Text


class GameCounts(Schema):
    """Number of games that were read, used, and dropped for each reason."""

    read: GameCount
    used: Count
    dropped: dict[str, Count]


class Example(Schema):
    """The first game that was dropped for a reason; `text` is shortened and escaped."""

    where: Text
    text: Text


class PositionCounts(Schema):
    """Number of positions in each split."""

    total: Count
    train: Count
    val: Count
    test: Count


class Manifest(Schema):
    """Schema of a dataset's manifest.json, whose counts must be consistent."""

    planes: PlaneFormat
    """How the shards store planes."""
    row_group: Annotated[int, Field(ge=1, le=ROW_GROUP)]
    """Rows of each row group except a shard's last; it lets rows be counted without footers."""
    sources: list[SourceEntry]
    config: dict[str, Any]
    games: GameCounts
    examples: dict[str, Example] = {}
    positions: PositionCounts
    positions_dropped: dict[str, Count] = {}
    bytes_per_position: Annotated[float, Field(ge=0.0, allow_inf_nan=False)]
    label_collisions: Count
    files: list[FileEntry]

    @model_validator(mode="after")
    def _agree(self) -> Self:
        rows: Counter[str | None] = Counter()
        for entry in self.files:
            if entry.name != GAMES:
                rows[entry.split] += entry.rows
            elif entry.split is not None or entry.rows != self.games.read:
                raise ValueError(
                    f"games.read is {self.games.read}, not the number of rows in {GAMES}"
                )
        if len({entry.name for entry in self.files}) < len(self.files):
            raise ValueError("files lists a file twice")
        counts = {split: rows[split] for split in SPLITS}
        counts["total"] = sum(counts.values())
        for name, count in counts.items():
            if getattr(self.positions, name) != count:
                raise ValueError(
                    f"positions.{name} is not {count}, the number of rows in its files"
                )
        if self.games.used > self.games.read:
            raise ValueError(
                f"games.used is {self.games.used}, more than games.read, which is {self.games.read}"
            )
        return self


class NotedExample(Schema):
    """The first game of a chunk that was dropped for a reason."""

    source: Count
    offset: Count
    site: Text
    text: Text


class ChunkNote(Schema):
    """Schema of .building/parts/00000.json, the results of a chunk of an ingest or self-play."""

    text_sha256: Sha256
    config: str = ""
    """Hash of the settings; "" for self-play, which has a single writer."""
    games: GameCount
    status: dict[str, Count]
    examples: dict[str, NotedExample] = {}
    rows: Count
    rows_dropped: dict[str, Count]
    label_collisions: Count
    files: list[FileEntry]
    names: dict[str, Count] = {}
    """Most frequent player names of a chunk in which the requested players made no move."""


class JoinedDataset(Schema):
    """A dataset of a training set."""

    name: Name
    path: Name
    manifest_sha256: Sha256
    held_out: Annotated[str, Field(pattern=r"^(all|none|[0-9]{4}\.[0-9]{2}\.[0-9]{2})$")]
    """First day of the held-out games, "all" or "none"."""
    why: Text
    held_rows: dict[FileName, list[Count]]
    """Number of held-out rows in each row group, by file name, if `held_out` is a day."""
    first_date: Text | None = None
    last_date: Text | None = None


class TrainingSet(Schema):
    """Schema of training_set.json."""

    config: dict[Literal["hold_out"], Name]
    positions: dict[Literal["train", "val", "test", "latest"], Count]
    games_on_both_sides: dict[Literal["val", "test", "latest"], Count]
    datasets: Annotated[list[JoinedDataset], Field(min_length=1)]

    @model_validator(mode="after")
    def _agree(self) -> Self:
        if len({entry.name for entry in self.datasets}) < len(self.datasets):
            raise ValueError("two datasets have the same name")
        return self


def read_manifest(directory: Path) -> dict[str, Any]:
    """Read and check a dataset's manifest.

    Raises DatasetError if it is missing, damaged, or of another format or encoding.
    """
    path = directory / MANIFEST
    if not directory.is_dir():
        how = "create a dataset with `fianchetto ingest DUMP --out DIR`"
        raise DatasetError(f"{directory} is not a directory: {how}")
    if not path.is_file():
        if (directory / BUILDING).is_dir():
            hint = "an ingest was stopped there: run it again to finish it"
        else:
            hint = "it is not a dataset"
        raise DatasetError(f"{directory} has no {MANIFEST} ({hint})")
    manifest: dict[str, Any] = read_json(path, DatasetError, max_bytes=MAX_MANIFEST_BYTES)
    if not isinstance(manifest, dict):
        raise DatasetError(f"{path} is not a Fianchetto manifest")
    own_versions = {
        "format_version": FORMAT_VERSION,
        "encoding_version": ENCODING_VERSION,
        "moves_hash": moves_hash(),
    }
    for name, own in own_versions.items():
        if manifest.get(name) != own:
            raise damaged_file_error(
                f"{path} has {name} {safe_text(manifest.get(name))}, but this program reads {own!r}"
            )
    validate_content(path, manifest, Manifest, DatasetError, hint=": it is damaged")
    return manifest


def list_damage(manifest: Mapping[str, Any]) -> list[str]:
    """Describe the damage of each damaged dump, with its name."""
    damaged = (source for source in manifest["sources"] if source["damage"])
    return [f"{source['name']}: {source['damage']}" for source in damaged]


def read_chunk_note(path: Path) -> dict[str, Any]:
    """Read and check the note of a chunk; raises DatasetError if it is damaged."""
    note: dict[str, Any] = read_json(path, DatasetError)
    hint = f": it is damaged; delete {path.parents[2]} and ingest again"
    validate_content(path, note, ChunkNote, DatasetError, hint=hint)
    return note


def damaged_file_error(problem: str) -> DatasetError:
    """Return the error for a damaged file, with the remedy to ingest the dump again."""
    return DatasetError(problem, remedy="ingest the dump again", code="damaged")
