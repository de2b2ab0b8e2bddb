"""Shards and tables of games that anybody may have written: opened and read with every value within the format's ranges.

Footers lie: what they say of types and rows is held against the format and the manifest before anything is made room for, and
the values themselves are looked at, a row group at a time; 2 % of the time that reading one takes. Whatever is wrong is a
DatasetError of one line with the file's name.

Axes: R rows, N moves of all rows that were searched.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from engine.board.movegen import MOVE_PLANES
from engine.encoding.inferred import NO_EP_FILE
from engine.encoding.planes import LABELS, PLANE_BYTES, PlanesError, moves_hash, positions
from engine.encoding.views import LAST_MOVES, NO_LAST_MOVE
from engine.errors import UserError
from engine.json_files import shown
from pipeline.dataset.files.shards import (
    BATCH_SENTINELS,
    BESIDES,
    COLUMNS,
    GAMES,
    LARGEST_GROUP,
    SPLITS,
    Batch,
    batch_columns,
    schema,
)
from pipeline.dataset.files.stored_planes import (
    form_of,
    needed_columns,
    packed_of,
    plane_columns,
    plane_fields,
    read_stored,
    unpacked,
)
from pipeline.errors import DatasetError
from pipeline.storage.stores import opened

BOUNDS: Mapping[str, tuple[int, int]] = {
    "label": (0, LABELS - 1),
    "promotion": (0, 5),
    "castling": (0, 15),
    "result": (-1, 1),
}
"""Least and largest value of columns that do not use all of their type."""
GAMES_COLUMNS: Mapping[str, pa.DataType] = {
    "source": pa.uint16(),
    "offset": pa.int64(),
    "length": pa.uint32(),
    "date": pa.string(),
    "white_elo": pa.uint16(),
    "black_elo": pa.uint16(),
    "time_control": pa.string(),
    "termination": pa.string(),
    "result": pa.int8(),
    "plies": pa.uint16(),
    "identity": pa.uint64(),
    "split": pa.string(),
    "dropped": pa.string(),
}
"""Columns of `games.parquet` that somebody reads."""
KNOWN_GAMES = ("source", "offset", "length", "plies", "identity")
"""Those of them that every game has."""


@contextmanager
def reading(path: Path, what: str = "a shard") -> Iterator[None]:
    """Turn whatever a damaged Parquet file raises into a DatasetError with its name."""
    try:
        yield
    except UserError:
        raise
    except (OSError, ValueError, KeyError, IndexError, OverflowError, MemoryError, pa.ArrowException) as error:
        said = shown(" ".join(str(error).split()) or type(error).__name__, 200, quote=False)
        raise DatasetError(f"{path} cannot be read as {what} ({said}): ingest the dump again") from error


# ---------------------------------------------------------------- shards


def check_footer(path: Path, footer: pq.FileMetaData, rows: int | None = None) -> None:
    """Raise DatasetError for a file whose columns, encoding or row groups are not a shard's; `rows` is what is said of it."""
    found = footer.schema.to_arrow_schema()
    form = form_of(found.names)
    ours = schema(form, found.names)
    stamp = (footer.metadata or {}).get(b"moves_hash", b"").decode("ascii", "replace")
    if not found.equals(ours, check_metadata=False) or stamp != moves_hash():
        raise DatasetError(
            f"{path} is no shard of this version (moves are numbered by {shown(stamp, quote=False) or 'an unknown table'}): "
            "ingest the dump again"
        )
    counts = [footer.row_group(index).num_rows for index in range(footer.num_row_groups)]
    if any(not 0 <= count <= LARGEST_GROUP for count in counts):
        raise DatasetError(f"{path} has row groups of more than {LARGEST_GROUP} rows: no shard of this project")
    if sum(counts) != footer.num_rows or (rows is not None and rows != footer.num_rows):
        said = footer.num_rows if rows is None else rows
        raise DatasetError(f"{path} has {sum(counts)} rows, not {said}: ingest the dump again")
    for index, count in enumerate(counts):
        for column in range(len(plane_fields(form))):
            size = footer.row_group(index).column(column).total_compressed_size
            if not 0 <= size <= count * PLANE_BYTES + (1 << 20):  # what does not pack is a little longer than it was
                raise DatasetError(f"{path} has planes of {size} bytes in {count} rows: it is damaged")


class ShardReader:
    """An open shard: what everybody reads row groups with."""

    def __init__(self, path: Path, file: pq.ParquetFile) -> None:
        """Read `file`, which lies at `path` and whose footer has been checked."""
        self.path, self.file, self.form = path, file, form_of(file.metadata.schema.names)
        metadata = file.metadata
        self.groups = [metadata.row_group(index).num_rows for index in range(metadata.num_row_groups)]
        """Rows of each row group."""
        self.besides = tuple(name for name in BESIDES if name in metadata.schema.names)
        """Those of BESIDES that it has."""

    def _stored(self, columns: Sequence[str]) -> list[str]:
        """Return those of some columns, planes left out, that the file has."""
        return [name for name in columns if name != "planes" and (name in self.besides or name not in BESIDES)]

    def _filled(self, batch: Batch, group: int, columns: Sequence[str]) -> Batch:
        """Add those of BESIDES that the file has not, as null."""
        for name in columns:
            if name in BESIDES and name not in self.besides:
                null = BATCH_SENTINELS.get(name, np.nan)
                batch[name] = np.full(self.groups[group], null, dtype=BESIDES[name].to_pandas_dtype())
        return batch

    def read(
        self,
        group: int,
        columns: Sequence[str],
        games: int | None = None,
        planes_RP: NDArray[np.uint64] | None = None,
    ) -> Batch:
        """Return a row group as `pipeline.dataset.files.shards.batch_columns` does, in its order.

        `games` are those of the dataset, which rows name by number. `planes_RP`, uint64[R, 77], is where planes are written,
        else to fresh memory. Raises ValueError for values that the format does not have.
        """
        others = self._stored(columns)
        if "planes" not in columns:
            batch = batch_columns(self.file.read_row_group(group, columns=others, use_threads=False))
        else:
            table, planes = read_stored(self.file, self.path, group, others, planes_RP)
            batch = batch_columns(table.select(others)) | {"planes": planes}
        check_rows(batch, games)
        return self._filled(batch, group, columns)

    def read_packed(
        self, group: int, columns: Sequence[str], games: int | None = None
    ) -> tuple[Batch, NDArray[np.uint64]]:
        """Return a row group of a compact shard: its columns but the planes, and packed positions uint64[R, PACKED].

        `pipeline.dataset.files.stored_planes.unpacked` makes the planes of them, and looks at what is only seen then. Raises
        ValueError as `read` does.
        """
        if self.form != "compact":
            raise ValueError("its planes are not compact, though the manifest says so")
        others = self._stored(columns)
        wanted = list(dict.fromkeys([*others, *needed_columns("compact")]))
        table = self.file.read_row_group(group, columns=wanted, use_threads=False)
        batch, packed_RW = batch_columns(table.select(others)), packed_of(table)
        check_rows(batch | {"planes": unpacked(packed_RW)} if "visits" in batch else batch, games)
        return self._filled(batch, group, columns), packed_RW

    def table(self, group: int, columns: Sequence[str] | None = None) -> pa.Table:
        """Return a row group as `schema("bytes")` has it, whatever its form, its values unchecked; some columns or all."""
        columns = [*COLUMNS, *self.besides] if columns is None else list(columns)
        if "planes" not in columns:
            return self.file.read_row_group(group, columns=columns, use_threads=False)
        others = [name for name in columns if name != "planes"]
        table, planes_RP = read_stored(self.file, self.path, group, others)
        found = {
            field.name: array
            for field, array in zip(plane_fields("bytes"), plane_columns("bytes", planes_RP, {}), strict=True)
        }
        found |= {name: table.column(name) for name in others}
        wanted = schema("bytes", self.besides)
        return pa.Table.from_arrays(
            [found[name] for name in columns], schema=pa.schema([wanted.field(name) for name in columns])
        )


@contextmanager
def open_shard(path: Path, rows: int | None = None, metadata: pq.FileMetaData | None = None) -> Iterator[ShardReader]:
    """Open a shard; whatever is wrong with it, there and while it is read, raises DatasetError.

    `rows` is what is said of it; `metadata` its footer, where that has been read and checked before.
    """
    with reading(path), pq.ParquetFile(opened(path), metadata=metadata) as file:
        if metadata is None:
            check_footer(path, file.metadata, rows)
        yield ShardReader(path, file)


def check_rows(rows: Batch, games: int | None = None) -> None:
    """Raise ValueError, naming column and row, for values that the format does not have; of the columns that are there."""
    for name, (low, high) in BOUNDS.items():
        if name in rows and len(rows[name]) and not low <= int(rows[name].min()) <= int(rows[name].max()) <= high:
            _refuse(name, rows[name], (rows[name] < low) | (rows[name] > high))
    if "promotion" in rows:
        _refuse("promotion", rows["promotion"], rows["promotion"] == 1)  # a pawn
    if "ep_file" in rows:
        _refuse("ep_file", rows["ep_file"], (rows["ep_file"] > 7) & (rows["ep_file"] != NO_EP_FILE))
    for name in rows.keys() & set(LAST_MOVES):
        _refuse(name, rows[name], (rows[name] >= LABELS) & (rows[name] != NO_LAST_MOVE))
    for name in ("root_value", "best_value"):
        if name in rows:
            _refuse(name, rows[name], np.abs(rows[name]) > 1)  # NaN stands for null
    if "game" in rows and games is not None:
        _refuse("game", rows["game"], rows["game"] >= games)
    if "planes" in rows:
        try:
            positions(rows["planes"])
        except PlanesError as error:
            raise ValueError(f"planes: {error}") from None
        if "label" in rows:
            legal = _legal(rows["planes"], np.arange(len(rows["label"])), rows["label"])
            _refuse("label", rows["label"], ~legal, "no legal move of its row")
    if "visits" in rows:
        _check_visits(rows)


def _legal(planes_RP: NDArray[np.uint64], rows_N: NDArray[np.int64], labels_N: NDArray[Any]) -> NDArray[np.bool_]:
    """Tell which labels are legal moves of their rows, bool[N], by the rows' planes."""
    words = planes_RP[rows_N, MOVE_PLANES + (labels_N >> 6).astype(np.int64)]
    legal: NDArray[np.bool_] = (words >> (labels_N & 63).astype(np.uint64)) & np.uint64(1) != 0
    return legal


def _refuse(name: str, values: NDArray[Any], wrong: NDArray[np.bool_], why: str = "out of range") -> None:
    if wrong.any():
        row = int(np.argmax(wrong))
        raise ValueError(f"{name} is {values[row]} in row {row} of a row group, {why}")


def _check_visits(rows: Batch) -> None:
    """Hold the moves of a search against the format, and against the legal moves where planes are there."""
    searched = [(row, moves) for row, moves in enumerate(rows["visits"]) if moves is not None and len(moves)]
    if not searched:
        return
    moves_N = np.concatenate([moves for _, moves in searched])
    rows_N = np.repeat([row for row, _ in searched], [len(moves) for _, moves in searched])
    labels_N, shares_N = moves_N["label"], moves_N["share"]
    _refuse("visits.label", labels_N, labels_N >= LABELS)
    _refuse("visits.share", shares_N, ~((shares_N >= 0) & (shares_N <= 1)))
    if "planes" in rows:
        _refuse("visits.label", labels_N, ~_legal(rows["planes"], rows_N, labels_N), "no legal move of its row")


# ---------------------------------------------------------------- games


def games_tables(
    directory: Path, manifest: Mapping[str, Any], columns: Sequence[str]
) -> Iterator[tuple[int, pa.Table]]:
    """Give `games.parquet` a row group at a time: the number of its first game, and a table of the columns.

    Raises DatasetError where it is not what the manifest says, or holds what no game has.
    """
    path, first = directory / GAMES, 0
    with reading(path, "a table of games"), pq.ParquetFile(opened(path)) as file:
        _check_games_footer(path, file, manifest["games"]["read"], columns)
        for group in range(file.num_row_groups):
            table = file.read_row_group(group, columns=list(columns), use_threads=False)
            check_games(table)
            yield first, table
            first += len(table)


def read_games(directory: Path, manifest: Mapping[str, Any], columns: Sequence[str]) -> pa.Table:
    """Read columns of `games.parquet` whole, as `games_tables` reads it; DatasetError where there is no game."""
    tables = [table for _, table in games_tables(directory, manifest, columns)]
    if not tables:
        raise DatasetError(f"{directory / GAMES} holds no games: ingest the dump again")
    return pa.concat_tables(tables)


def _check_games_footer(path: Path, file: pq.ParquetFile, games: int, columns: Sequence[str]) -> None:
    """Raise ValueError where types or counts are not those of a table of games."""
    found = file.schema_arrow
    for name in columns:
        at = found.get_all_field_indices(name)
        if len(at) != 1 or found.field(at[0]).type != GAMES_COLUMNS[name]:
            held = found.field(at[0]).type if at else "missing"
            raise ValueError(f"its column {name} is {held}, not {GAMES_COLUMNS[name]}")
    if file.metadata.num_rows != games:
        raise ValueError(f"it has {file.metadata.num_rows} games, not {games}")


def check_games(table: pa.Table) -> None:
    """Raise ValueError, naming the column, for values that no game has; of the columns that are there."""
    table.validate(full=True)  # text that is no UTF-8
    for name in table.schema.names:
        column = table[name]
        if name in KNOWN_GAMES and column.null_count:
            raise ValueError(f"{name} is missing for {column.null_count} games")
        if name == "split":
            wrong = set(pc.unique(column).to_pylist()) - {*SPLITS, None}
            if wrong:
                raise ValueError(f"the split of some games is {shown(min(wrong))}")
        if name in ("result", "offset") and len(column) > column.null_count:
            ends = pc.min_max(column)
            low, high = ends["min"].as_py(), ends["max"].as_py()
            if low < (-1 if name == "result" else 0) or (name == "result" and high > 1):
                raise ValueError(
                    f"{name} of a game is {low if low < -1 or name == 'offset' else high}, which is out of range"
                )
