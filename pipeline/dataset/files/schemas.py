"""Schemas of the JSON files of datasets: once checked, a file's fields are there and within bounds.

A file is read with engine/json_files.py, checked against its schema once, and used as a plain dict.
Fields that a schema does not name are allowed: some commands add their own. Stability: a required
field has been written since the format version that its file must have.
"""

from pathlib import PurePath
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from engine.json_files import shown
from pipeline.dataset.files.columns import Form
from pipeline.dataset.files.layout import GAMES, MOST_GAMES, ROW_GROUP, SPLITS


def _file_name(value: object) -> object:
    """Refuse anything but a bare file name: it would be outside the dataset."""
    bare = isinstance(value, str) and value not in ("", ".", "..") and PurePath(value).name == value
    if not bare or not str(value).isprintable() or "\\" in str(value):
        raise ValueError(f"names a file outside the dataset: {shown(value)}")
    return value


def _one_line(value: object) -> object:
    if not isinstance(value, str) or not value or not value.isprintable():
        raise ValueError(f"{shown(value)} is no name")
    return value


Count = Annotated[int, Field(ge=0, le=1 << 53)]
Number = Annotated[float, Field(allow_inf_nan=False)]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
FileName = Annotated[str, BeforeValidator(_file_name), Field(max_length=200)]
Name = Annotated[str, BeforeValidator(_one_line), Field(max_length=4096)]
Text = Annotated[str, Field(max_length=1 << 16)]


class Schema(BaseModel):
    """A JSON object: values are not converted to other types, and other fields are allowed."""

    model_config = ConfigDict(strict=True, extra="ignore")


class FileEntry(Schema):
    """A file of a dataset, in its manifest or in the note of a chunk."""

    name: FileName
    split: Literal["train", "val", "test"] | None
    rows: Count
    bytes: Count
    sha256: Sha256


class SourceEntry(Schema):
    """A dump that a dataset was made of."""

    name: Text
    bytes: Count
    sha256: Sha256
    damage: Text


class GameCounts(Schema):
    """Games that were read, used and dropped, by reason."""

    read: Annotated[int, Field(ge=0, le=MOST_GAMES)]
    used: Count
    dropped: dict[str, Count]


class Example(Schema):
    """The first game that was dropped for a reason; `text` is cut and escaped."""

    where: Text
    text: Text


class PositionCounts(Schema):
    """Positions by split."""

    total: Count
    train: Count
    val: Count
    test: Count


class Manifest(Schema):
    """manifest.json of a dataset. Its counts agree with each other."""

    planes: Form
    """How shards hold planes."""
    row_group: Annotated[int, Field(ge=1, le=ROW_GROUP)]
    """Rows of each row group of each shard but its last: with it, the footers need not be opened to
    count."""
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
        """Compare the counts with those of the files."""
        seen: set[str] = set()
        for entry in self.files:
            if entry.name in seen:
                raise ValueError(f"files names {entry.name} twice")
            seen.add(entry.name)
            if entry.name == GAMES and (entry.split is not None or entry.rows != self.games.read):
                raise ValueError(
                    f"games.read is {self.games.read}, and {GAMES} has {entry.rows} games"
                )
        counted = {
            split: sum(
                entry.rows for entry in self.files if entry.split == split and entry.name != GAMES
            )
            for split in SPLITS
        }
        for split, rows in counted.items():
            if getattr(self.positions, split) != rows:
                raise ValueError(
                    f"positions.{split} is {getattr(self.positions, split)}, and its files have "
                    f"{rows} rows"
                )
        if self.positions.total != sum(counted.values()):
            raise ValueError(
                f"positions.total is {self.positions.total}, and the splits have "
                f"{sum(counted.values())}"
            )
        if self.games.used > self.games.read:
            raise ValueError(f"games.used is {self.games.used} of {self.games.read} that were read")
        return self


class NotedExample(Schema):
    """The first game of a chunk that was dropped for a reason."""

    source: Count
    offset: Count
    site: Text
    text: Text


class ChunkNote(Schema):
    """.building/parts/00000.json: what a finished chunk of an ingest gave."""

    text_sha256: Sha256
    config: str = ""
    """A generation of self-play has one writer and leaves it out."""
    games: Annotated[int, Field(ge=0, le=MOST_GAMES)]
    status: dict[str, Count]
    examples: dict[str, NotedExample] = {}
    rows: Count
    rows_dropped: dict[str, Count]
    label_collisions: Count
    files: list[FileEntry]
    names: dict[str, Count] = {}
    """Most frequent player names, noted by a chunk that has no move of the wanted players."""


class Joined(Schema):
    """A dataset of a training set."""

    name: Name
    path: Name
    manifest_sha256: Sha256
    held_out: Annotated[str, Field(pattern=r"^(all|none|[0-9]{4}\.[0-9]{2}\.[0-9]{2})$")]
    """The first day of the games that are held out, or all, or none."""
    why: Text
    held_rows: dict[FileName, list[Count]]
    """Rows that are held out of each row group, by file, where `held_out` is a day."""
    first_date: Text | None = None
    last_date: Text | None = None


class TrainingSet(Schema):
    """training_set.json."""

    config: dict[Literal["hold_out"], Name]
    positions: dict[Literal["train", "val", "test", "latest"], Count]
    games_on_both_sides: dict[Literal["val", "test", "latest"], Count]
    datasets: Annotated[list[Joined], Field(min_length=1)]

    @model_validator(mode="after")
    def _agree(self) -> Self:
        names = [entry.name for entry in self.datasets]
        if len(set(names)) < len(names):
            raise ValueError("datasets: two have the same name")
        return self
