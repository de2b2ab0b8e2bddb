"""Read shards and tables of games from anywhere, checking every value against the format.

Footers can lie: their types, rows and sizes are checked against the format and the manifest before
memory is allocated. The values of a row group are checked when it is read, which takes 2 % of the
time. Every fault is a DatasetError of one line with the file's name.

Axes: R rows, N moves of all rows that were searched.
"""

import errno
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
from engine.board.position import MAX_MOVES
from engine.encoding.planes import LABELS, PlanesError, check_planes, moves_hash
from engine.encoding.views import NO_LABEL
from engine.errors import UserError
from engine.json_files import shown
from pipeline.dataset.files.columns import MOVE_COLUMNS, OPTIONAL, VISITS_LEAVES, form_of, schema
from pipeline.dataset.files.layout import GAMES, ROW_GROUP, SPLITS
from pipeline.dataset.files.shards import (
    Batch,
    batch_columns,
    check_values,
    null_column,
    require_valid,
)
from pipeline.dataset.files.stored_planes import packed_from, planes_from, read_columns, unpack
from pipeline.errors import DatasetError
from pipeline.storage.stores import open_for_arrow

LARGEST_VALUE = 8 * max(MOVE_COLUMNS.values())
"""Bytes of the widest value of a shard, a column of move planes."""
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Errors of writing to a full disk."""


@contextmanager
def reading(path: Path, what: str = "a shard") -> Iterator[None]:
    """Turn whatever a damaged Parquet file raises into a DatasetError with its name."""
    try:
        yield
    except UserError:
        raise
    except (
        OSError,
        ValueError,
        KeyError,
        IndexError,
        OverflowError,
        MemoryError,
        pa.ArrowException,
    ) as error:
        if isinstance(error, OSError) and error.errno in FULL:
            raise  # Numba was storing a kernel: the file is sound
        said = shown(" ".join(str(error).split()) or type(error).__name__, 200, quote=False)
        raise DatasetError(
            f"{path} cannot be read as {what} ({said})",
            remedy="ingest the dump again",
            code="damaged",
        ) from error


# ---------------------------------------------------------------- shards


def check_footer(path: Path, footer: pq.FileMetaData, rows: int | None = None) -> None:
    """Raise DatasetError for a file whose columns, encoding or sizes are not a shard's, or that
    does not have `rows` rows.
    """
    found = footer.schema.to_arrow_schema()
    stamp = (footer.metadata or {}).get(b"moves_hash", b"").decode("ascii", "replace")
    if (
        not found.equals(schema(form_of(found.names), found.names), check_metadata=False)
        or stamp != moves_hash()
    ):
        raise DatasetError(
            f"{path} is not a shard of this version (its move table is "
            f"{shown(stamp, quote=False) or 'unknown'})",
            remedy="ingest the dump again",
            code="damaged",
        )
    counts = [footer.row_group(index).num_rows for index in range(footer.num_row_groups)]
    if any(not 0 <= count <= ROW_GROUP for count in counts):
        raise DatasetError(
            f"{path} has row groups of more than {ROW_GROUP} rows: no shard of this project"
        )
    if sum(counts) != footer.num_rows or (rows is not None and rows != footer.num_rows):
        said = footer.num_rows if rows is None else rows
        raise DatasetError(
            f"{path} has {sum(counts)} rows, not {said}",
            remedy="ingest the dump again",
            code="damaged",
        )
    for index, count in enumerate(counts):
        _check_sizes(path, footer.row_group(index), count)


def _check_sizes(path: Path, group: pq.RowGroupMetaData, rows: int) -> None:
    """Raise DatasetError for a row group whose columns would take more memory than so many rows
    can.
    """
    for at in range(group.num_columns):
        column = group.column(at)
        most, width = (
            (rows * MAX_MOVES, 4)
            if column.path_in_schema in VISITS_LEAVES
            else (rows, LARGEST_VALUE)
        )
        sizes = (column.total_compressed_size, column.total_uncompressed_size)
        largest = 2 * most * width + (
            1 << 20
        )  # a dictionary, its indices and the pages' headers take more than the values
        if not 0 <= column.num_values <= most or not all(0 <= size <= largest for size in sizes):
            raise DatasetError(
                f"{path}: {column.path_in_schema} has {column.num_values:,} values in "
                f"{max(sizes):,} bytes, too many for "
                f"{rows:,} rows",
                remedy="ingest the dump again",
                code="damaged",
            )


class ShardReader:
    """An open shard, read by row groups."""

    def __init__(
        self, path: Path, file: pq.ParquetFile, wanted: NDArray[np.bool_] | None = None
    ) -> None:
        """Read `file`, which lies at `path` and whose footer has been checked: the rows of `wanted`
        games [G], or all.
        """
        metadata = file.metadata
        self.path, self.file, self.wanted, self.form = (
            path,
            file,
            wanted,
            form_of(metadata.schema.names),
        )
        self.groups = [
            metadata.row_group(index).num_rows for index in range(metadata.num_row_groups)
        ]
        """Rows of each row group."""
        self.optional = tuple(name for name in OPTIONAL if name in metadata.schema.names)
        """The optional columns that it has."""

    def read(
        self,
        group: int,
        columns: Sequence[str],
        games: int | None = None,
        planes_RP: NDArray[np.uint64] | None = None,
    ) -> Batch:
        """Return a row group as `batch_columns` does; optional columns that the shard lacks are
        null.

        `games` is the number of games of the dataset. Planes are written to `planes_RP`, uint64[R,
        77], if it is given. Raises ValueError for values outside of the format.
        """
        others, planes = self._stored(columns), "planes" in columns
        table = read_columns(self.file, group, self.form, others, planes=planes)
        batch = batch_columns(table.select(others)) | (
            {"planes": planes_from(table, planes_RP)} if planes else {}
        )
        check_rows(batch, games)
        return self._select(batch | self._missing(group, columns), columns)

    def read_packed(
        self, group: int, columns: Sequence[str], games: int | None = None
    ) -> tuple[Batch, NDArray[np.uint64]]:
        """Return a row group of a compact shard: its columns but the planes, and packed positions,
        uint64[R, PACKED].

        `unpack` computes the planes, and makes those checks that need them. Raises ValueError as
        `read` does.
        """
        if self.form != "compact":
            raise ValueError("its planes are not compact, though the manifest says so")
        others = self._stored(columns)
        table = read_columns(self.file, group, self.form, others, planes=True)
        batch, packed_RW = batch_columns(table.select(others)), packed_from(table)
        check_rows(batch | {"planes": unpack(packed_RW)} if "visits" in batch else batch, games)
        batch = self._select(
            batch | self._missing(group, columns) | {"planes": packed_RW}, (*columns, "planes")
        )
        return batch, batch.pop("planes")

    def table(self, group: int, columns: Sequence[str] | None = None) -> pa.Table:
        """Return columns of a row group, or all, as they are stored, without checking their
        values.
        """
        return self.file.read_row_group(
            group, columns=None if columns is None else list(columns), use_threads=False
        )

    def _stored(self, columns: Sequence[str]) -> list[str]:
        """Return the named columns that the file has, without planes, and those that `_select`
        needs.
        """
        names = columns if self.wanted is None else dict.fromkeys((*columns, "game"))
        return [
            name
            for name in names
            if name != "planes" and (name in self.optional or name not in OPTIONAL)
        ]

    def _select(self, batch: Batch, columns: Sequence[str]) -> Batch:
        """Return the columns of the rows of wanted games."""
        if self.wanted is None:
            return batch
        picked = np.flatnonzero(self.wanted[batch["game"]])
        return {name: batch[name][picked] for name in columns}

    def _missing(self, group: int, columns: Sequence[str]) -> Batch:
        """Return columns of nulls for the optional columns that the file lacks."""
        lacking = (name for name in columns if name in OPTIONAL and name not in self.optional)
        return {name: null_column(name, self.groups[group]) for name in lacking}


@contextmanager
def open_shard(
    path: Path,
    rows: int | None = None,
    metadata: pq.FileMetaData | None = None,
    wanted: NDArray[np.bool_] | None = None,
) -> Iterator[ShardReader]:
    """Open a shard; whatever is wrong with it, now or while it is read, raises DatasetError.

    `rows` is the manifest's count; `metadata` its footer, if that has been read and checked before;
    only rows of `wanted` games [G] are read, if it is given.
    """
    with (
        reading(path),
        open_for_arrow(path) as source,
        pq.ParquetFile(source, metadata=metadata) as file,
    ):
        if metadata is None:
            check_footer(path, file.metadata, rows)
        yield ShardReader(path, file, wanted)


def check_rows(rows: Batch, games: int | None = None) -> None:
    """Raise ValueError, naming column and row, for values outside of the format, in those columns
    that are given.
    """
    for name, values in rows.items():
        if name not in ("planes", "visits"):
            check_values(name, values, games)
    if "label" in rows and "plies" in rows:
        unknown = (rows["label"] == NO_LABEL) & (rows["plies"] > 0)
        require_valid(
            "label", rows["label"], unknown, "in a row of a game, where the move is known"
        )
    if "planes" in rows:
        try:
            check_planes(rows["planes"])
        except PlanesError as error:
            raise ValueError(f"planes: {error}") from None
        if "label" in rows:
            wrong, known = (
                np.zeros(len(rows["label"]), dtype=np.bool_),
                np.flatnonzero(rows["label"] != NO_LABEL),
            )
            wrong[known] = ~_legal(rows["planes"], known, rows["label"][known])
            require_valid("label", rows["label"], wrong, "no legal move of its row")
    if "visits" in rows:
        _check_visits(rows)


def _legal(
    planes_RP: NDArray[np.uint64], rows_N: NDArray[np.int64], labels_N: NDArray[Any]
) -> NDArray[np.bool_]:
    """Return whether labels are legal moves of their rows, bool[N], by the rows' planes."""
    words = planes_RP[rows_N, MOVE_PLANES + (labels_N >> 6).astype(np.int64)]
    legal: NDArray[np.bool_] = (words >> (labels_N & 63).astype(np.uint64)) & np.uint64(1) != 0
    return legal


def _check_visits(rows: Batch) -> None:
    """Check the moves of searches: their range, and that they are legal if planes are given."""
    searched = [
        (row, moves) for row, moves in enumerate(rows["visits"]) if moves is not None and len(moves)
    ]
    if not searched:
        return
    moves_N = np.concatenate([moves for _, moves in searched])
    rows_N = np.repeat([row for row, _ in searched], [len(moves) for _, moves in searched])
    labels_N, shares_N = moves_N["label"], moves_N["share"]
    require_valid("visits.label", labels_N, labels_N >= LABELS)
    require_valid("visits.share", shares_N, ~((shares_N >= 0) & (shares_N <= 1)))
    if "planes" in rows:
        legal = _legal(rows["planes"], rows_N, labels_N)
        require_valid("visits.label", labels_N, ~legal, "no legal move of its row")


# ---------------------------------------------------------------- games

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
"""The columns of `games.parquet` that this program reads."""
KNOWN_GAMES = ("source", "offset", "length", "plies", "identity")
"""Columns of the games' table without nulls."""
GAMES_AT_ONCE = 1 << 16
"""Games that are read together."""
MOST_TEXT = 1 << 28
"""Bytes of a text column of GAMES_AT_ONCE: no chunk of a dump is longer."""


def games_tables(
    directory: Path, manifest: Mapping[str, Any], columns: Sequence[str]
) -> Iterator[tuple[int, pa.Table]]:
    """Yield `games.parquet` in tables of GAMES_AT_ONCE: the number of the first game, and the
    columns.

    Memory is bounded whatever the file says: text is read as a dictionary, and decoded if it is not
    too long. Raises DatasetError where the file differs from the manifest or holds values that no
    game has.
    """
    path, first = directory / GAMES, 0
    texts = [name for name in columns if pa.types.is_string(GAMES_COLUMNS[name])]
    with reading(path, "a table of games"), open_for_arrow(path) as source:
        file = pq.ParquetFile(source, read_dictionary=texts)
        _check_games_footer(path, file, manifest["games"]["read"], columns)
        for batch in file.iter_batches(GAMES_AT_ONCE, columns=list(columns), use_threads=False):
            table = pa.table({name: _decoded(name, batch.column(name)) for name in columns})
            check_games(table)
            yield first, table
            first += len(table)


def _decoded(name: str, column: pa.Array) -> pa.Array:
    """Return a column of games with its dictionary applied; ValueError if the text would be too
    long.
    """
    if not pa.types.is_dictionary(column.type):
        return column
    size = pc.sum(pc.binary_length(column.dictionary).take(column.indices)).as_py() or 0
    if size > MOST_TEXT:
        raise ValueError(f"{name} holds {size:,} bytes of text in {len(column):,} games")
    return column.cast(pa.string())


def read_games(directory: Path, manifest: Mapping[str, Any], columns: Sequence[str]) -> pa.Table:
    """Read columns of `games.parquet` whole, as `games_tables` reads them; DatasetError if there is
    no game.
    """
    tables = [table for _, table in games_tables(directory, manifest, columns)]
    if not tables:
        raise DatasetError(
            f"{directory / GAMES} holds no games", remedy="ingest the dump again", code="damaged"
        )
    return pa.concat_tables(tables)


def _check_games_footer(
    path: Path, file: pq.ParquetFile, games: int, columns: Sequence[str]
) -> None:
    """Raise ValueError if types or counts are not those of a table of games."""
    found = file.schema_arrow
    for name in columns:
        kinds = [found.field(at).type for at in found.get_all_field_indices(name)]
        kinds = [kind.value_type if pa.types.is_dictionary(kind) else kind for kind in kinds]
        if kinds != [GAMES_COLUMNS[name]]:
            raise ValueError(
                f"its column {name} is {kinds[0] if kinds else 'missing'}, not "
                f"{GAMES_COLUMNS[name]}"
            )
    if file.metadata.num_rows != games:
        raise ValueError(f"it has {file.metadata.num_rows} games, not {games}")


def check_games(table: pa.Table) -> None:
    """Raise ValueError, naming the column, for values that no game has, in those columns that are
    given.
    """
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
                    f"{name} of a game is {low if low < -1 or name == 'offset' else high}, which "
                    f"is out of range"
                )
