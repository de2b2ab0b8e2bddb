"""Write and read shards, the Parquet files with the rows of a dataset.

Types, codecs and bounds of the columns are in the table of pipeline/dataset/files/columns.py. All
values are checked when a row group is read, or when its packed positions are unpacked; this takes
2 % of the reading time. Any problem with a file raises a one-line DatasetError with its name.

Axes: R rows, N moves of all searched rows.
"""

import errno
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from engine.board.movegen import MOVE_PLANES
from engine.board.position import MAX_MOVES
from engine.encoding.planes import LABELS, PLANES, PlanesError, check_planes, moves_hash
from engine.encoding.views import NO_LABEL
from engine.errors import UserError
from engine.json_files import safe_text
from pipeline.dataset.files.columns import (
    BATCH_SENTINELS,
    COLUMNS_BY_NAME,
    EARLIER_MOVES,
    OPTIONAL_COLUMNS,
    PLANE_COLUMNS,
    ROW_GROUP,
    PlaneFormat,
    find_plane_format,
    make_schema,
    make_writer_options,
)
from pipeline.dataset.files.manifest import MAX_GAMES, damaged_file_error
from pipeline.dataset.files.stored_planes import (
    PACKED_STATE_COLUMNS,
    combine_chunks,
    make_plane_arrays,
    read_packed_positions,
    read_planes,
    to_arrow,
    to_numpy,
    unpack_planes,
)
from pipeline.errors import DatasetError
from pipeline.storage.stores import open_for_arrow

Batch = dict[str, NDArray[Any]]
"""Rows as numpy arrays by column."""

# ---------------------------------------------------------------- writing


def make_rows_table(
    packed_RW: NDArray[np.uint64],
    columns: Mapping[str, NDArray[Any]],
    plane_format: PlaneFormat = "all",
) -> pa.Table:
    """Return the table of a shard from packed positions and the other columns.

    BATCH_SENTINELS become null, as do `visits` and `root_value` if they are missing; missing
    optional columns are omitted.
    """
    arrays = make_plane_arrays(packed_RW, plane_format)
    stored = make_schema(plane_format, columns.keys())
    for field in list(stored)[len(arrays) :]:
        if field.name in columns:
            values = columns[field.name].astype(field.type.to_pandas_dtype(), copy=False)
            missing = BATCH_SENTINELS.get(field.name)
            arrays.append(to_arrow(values, None if missing is None else values != missing))
        else:
            assert field.nullable, f"column {field.name} is missing"
            arrays.append(pa.nulls(len(packed_RW), field.type))
    return pa.Table.from_arrays(arrays, schema=stored)


def write_rows(table: pa.Table, path: Any) -> None:
    """Write a shard's table as Parquet to a path or an open file."""
    pq.write_table(table, path, row_group_size=ROW_GROUP, **make_writer_options(table.schema))


def write_packed_rows(
    packed_RW: NDArray[np.uint64],
    columns: Mapping[str, NDArray[Any]],
    plane_format: PlaneFormat,
    target: Any,
) -> None:
    """Write packed rows as a shard, one row group at a time to save memory."""
    stored = make_schema(plane_format, columns.keys())
    with pq.ParquetWriter(target, stored, **make_writer_options(stored)) as writer:
        for first in range(0, len(packed_RW), ROW_GROUP):
            rows = slice(first, first + ROW_GROUP)
            group = {name: values[rows] for name, values in columns.items()}
            writer.write_table(make_rows_table(packed_RW[rows], group, plane_format))


def make_game_column(game_R: NDArray[Any], first_game: int) -> NDArray[np.uint32]:
    """Return the column `game` from game numbers within a chunk, whose first game is `first_game`.

    Raises DatasetError if a number reaches MAX_GAMES.
    """
    number_R = game_R.astype(np.int64) + first_game
    if len(number_R) and not 0 <= int(number_R.min()) <= int(number_R.max()) < MAX_GAMES:
        raise DatasetError(
            f"a dataset can hold at most {MAX_GAMES:,} games, got game number "
            f"{int(number_R.max()):,}: ingest the dumps into several datasets and join them"
        )
    return number_R.astype(np.uint32)


def make_earlier_columns(
    earlier_RH: NDArray[np.uint16], picked_K: NDArray[np.int64]
) -> dict[str, NDArray[np.uint16]]:
    """Return the picked rows of earlier moves, uint16[R, H], as the columns EARLIER_MOVES."""
    moves_HK = np.ascontiguousarray(earlier_RH.take(picked_K, axis=0).T)
    return dict(zip(EARLIER_MOVES, moves_HK, strict=False))


# ---------------------------------------------------------------- reading

DAMAGE_ERRORS = (OSError, ValueError, LookupError, OverflowError, MemoryError, pa.ArrowException)
"""Exceptions that readers raise for damaged files."""
DISK_FULL_ERRNOS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Error numbers of a full disk."""
MAX_ROW_BYTES = 2 * 8 * (PLANES + MAX_MOVES)
"""Maximum bytes of a row: planes and the moves of a search, doubled for dictionary encoding."""
MAX_DICTIONARY_BYTES = 1 << 20
"""Maximum bytes of a row group's dictionaries and headers."""


@contextmanager
def convert_damage_errors(path: Path, kind: str = "a shard") -> Iterator[None]:
    """Convert the errors of a damaged Parquet file to a one-line DatasetError with its name."""
    try:
        yield
    except UserError:
        raise
    except DAMAGE_ERRORS as error:
        if isinstance(error, OSError) and error.errno in DISK_FULL_ERRNOS:
            raise  # Numba could not write its kernel cache: the shard is not damaged
        reason = safe_text(" ".join(str(error).split()) or type(error).__name__, 200, quote=False)
        raise damaged_file_error(f"{path} cannot be read as {kind} ({reason})") from error


def check_footer(path: Path, footer: pq.FileMetaData, groups: Sequence[int] | None = None) -> None:
    """Raise DatasetError unless a footer has a shard's columns and the manifest's row `groups`.

    A row group that is too large for its number of rows is also refused, before it is read.
    """
    found = footer.schema.to_arrow_schema()
    found_hash = (footer.metadata or {}).get(b"moves_hash", b"").decode("ascii", "replace")
    expected = make_schema(find_plane_format(found.names), found.names)
    if not found.equals(expected, check_metadata=False) or found_hash != moves_hash():
        table = safe_text(found_hash, quote=False) or "unknown"
        raise damaged_file_error(
            f"{path} is not a shard of this version (the hash of its move table is {table})"
        )
    group_sizes = list_group_sizes(footer)
    if groups is not None and group_sizes != list(groups):
        raise damaged_file_error(f"{path}: its row groups differ from the manifest")
    for index, count in enumerate(group_sizes):
        group = footer.row_group(index)
        sizes = (group.column(at).total_uncompressed_size for at in range(group.num_columns))
        if (size := sum(sizes)) > count * MAX_ROW_BYTES + MAX_DICTIONARY_BYTES:
            raise damaged_file_error(
                f"{path} has {size:,} bytes in {count:,} rows, too many for a shard"
            )


def list_group_sizes(footer: pq.FileMetaData) -> list[int]:
    """Return the number of rows in each row group."""
    return [footer.row_group(index).num_rows for index in range(footer.num_row_groups)]


class ShardReader:
    """An open shard, read by row groups."""

    def __init__(self, file: pq.ParquetFile, wanted_games: NDArray[np.bool_] | None = None) -> None:
        """Read all rows of a file with a checked footer, or those of `wanted_games`, bool[G]."""
        metadata = file.metadata
        self.file, self.wanted_games = file, wanted_games
        self.plane_format = find_plane_format(metadata.schema.names)
        self.groups = list_group_sizes(metadata)
        """Number of rows in each row group."""
        self.optional = tuple(name for name in OPTIONAL_COLUMNS if name in metadata.schema.names)
        """Optional columns that the file has."""

    def read(
        self,
        group: int,
        columns: Sequence[str],
        games: int | None = None,
        planes_RP: NDArray[np.uint64] | None = None,
        *,
        packed: bool = False,
    ) -> Batch:
        """Return the columns of a row group; missing optional columns are null.

        `games` is the number of games in the dataset. Planes are written to `planes_RP`, uint64[R,
        77], if it is given. With `packed`, the planes of a compact shard are returned as packed
        positions, uint64[R, PACKED_WORDS], which `unpack_planes` checks later. Raises ValueError
        for invalid values.
        """
        if packed and self.plane_format != "compact":
            raise ValueError("its planes are not compact, but the manifest says they are")
        selected = columns if self.wanted_games is None else dict.fromkeys((*columns, "game"))
        lacking = [
            name for name in selected if name in OPTIONAL_COLUMNS and name not in self.optional
        ]
        others = [name for name in selected if name != "planes" and name not in lacking]
        stored = list(others)
        if "planes" in columns:
            stored += [column.name for column in PLANE_COLUMNS[self.plane_format]]
            stored += PACKED_STATE_COLUMNS if self.plane_format == "compact" else ()
        table = self.file.read_row_group(
            group, columns=list(dict.fromkeys(stored)), use_threads=False
        )
        batch = {name: _read_column(table, name) for name in others}
        if packed:
            words_RW = read_packed_positions(table)
            # visits are compared with the legal moves here, labels when planes are computed
            planes = {"planes": unpack_planes(words_RW)} if "visits" in batch else {}
            check_rows(batch | planes, games)
            batch["planes"] = words_RW
        else:
            if "planes" in columns:
                batch["planes"] = read_planes(table, planes_RP)
            check_rows(batch, games)
        for name in lacking:
            dtype = OPTIONAL_COLUMNS[name].type.to_pandas_dtype()
            batch[name] = np.full(len(table), BATCH_SENTINELS.get(name, np.nan), dtype=dtype)
        if self.wanted_games is None:
            return batch
        picked = np.flatnonzero(self.wanted_games[batch["game"]])
        return {name: batch[name][picked] for name in columns}


@contextmanager
def open_shard(
    path: Path,
    groups: Sequence[int] | None = None,
    metadata: pq.FileMetaData | None = None,
    wanted_games: NDArray[np.bool_] | None = None,
) -> Iterator[ShardReader]:
    """Open a shard; any problem with it, now or while it is read, raises DatasetError.

    `groups` are the sizes of the row groups in the manifest. `metadata` is the footer, if it has
    already been read and checked. With `wanted_games`, bool[G], only their rows are returned.
    """
    with (
        convert_damage_errors(path),
        open_for_arrow(path) as source,
        pq.ParquetFile(source, metadata=metadata) as file,
    ):
        if metadata is None:
            check_footer(path, file.metadata, groups)
        yield ShardReader(file, wanted_games)


def _read_column(table: pa.Table, name: str) -> NDArray[Any]:
    """Return a column as a numpy array, with BATCH_SENTINELS for null, or NaN for floats."""
    column = combine_chunks(table.column(name))
    if name == "visits":
        return _visits_to_numpy(column)
    if column.null_count:
        column = column.fill_null(BATCH_SENTINELS.get(name, float("nan")))
    return to_numpy(column)


def _visits_to_numpy(column: pa.ListArray) -> NDArray[Any]:
    """Return an object for each row: records `label` and `share` of its moves, None for null."""
    rows = np.empty(len(column), dtype=object)
    if column.null_count == len(column):
        return rows
    moves = column.values
    records = np.empty(len(moves), dtype=[("label", np.uint16), ("share", np.float32)])
    for name, values in zip(("label", "share"), moves.flatten(), strict=True):
        records[name] = values.fill_null(0).to_numpy()
    ends = column.offsets.to_numpy()
    for row in np.flatnonzero(column.is_valid().to_numpy(zero_copy_only=False)):
        rows[row] = records[ends[row] : ends[row + 1]]
    return rows


# ---------------------------------------------------------------- checks


def check_rows(rows: Batch, games: int | None = None) -> None:
    """Raise ValueError, naming column and row, for an invalid value in the given columns.

    `games` is the number of games in the dataset, which bounds the column `game`.
    """
    for name, values in rows.items():
        if name not in ("planes", "visits"):
            _check_bounds(name, values, games)
    if "label" in rows and "plies" in rows:
        unknown = (rows["label"] == NO_LABEL) & (rows["plies"] > 0)
        _require_none_wrong(
            "label", rows["label"], unknown, "but every move of a game must be known"
        )
    if "planes" in rows:
        try:
            check_planes(rows["planes"])
        except PlanesError as error:
            raise ValueError(f"planes: {error}") from None
        if "label" in rows:
            known = np.flatnonzero(rows["label"] != NO_LABEL)
            wrong = np.zeros(len(rows["label"]), dtype=np.bool_)
            wrong[known] = ~_are_legal(rows["planes"], known, rows["label"][known])
            _require_none_wrong(
                "label", rows["label"], wrong, "which is not a legal move in its position"
            )
    if "visits" in rows:
        _check_visits(rows)


def _check_bounds(name: str, values_R: NDArray[Any], games: int | None) -> None:
    column = COLUMNS_BY_NAME[name]
    bounds = (0, games - 1) if name == "game" and games is not None else column.bounds
    if bounds is None or not len(values_R):
        return
    low, high = bounds
    if low <= values_R.min() <= values_R.max() <= high:
        return
    wrong = (values_R < low) | (values_R > high)  # False for NaN, which is null
    for valid in (column.none, column.null):
        if valid is not None:
            wrong &= values_R != valid
    _require_none_wrong(name, values_R, wrong)


def _require_none_wrong(
    name: str, values: NDArray[Any], wrong: NDArray[np.bool_], why: str = "out of range"
) -> None:
    """Raise ValueError with the column, the row and the value if any value is wrong."""
    if wrong.any():
        row = int(np.argmax(wrong))
        raise ValueError(f"{name} is {values[row]} in row {row} of a row group, {why}")


def _are_legal(
    planes_RP: NDArray[np.uint64], rows_N: NDArray[np.int64], labels_N: NDArray[Any]
) -> NDArray[np.bool_]:
    """Return which labels are legal moves of their rows according to the planes, bool[N]."""
    words = planes_RP[rows_N, MOVE_PLANES + (labels_N >> 6).astype(np.int64)]
    legal: NDArray[np.bool_] = (words >> (labels_N & 63).astype(np.uint64)) & np.uint64(1) != 0
    return legal


def _check_visits(rows: Batch) -> None:
    searched = [
        (row, moves) for row, moves in enumerate(rows["visits"]) if moves is not None and len(moves)
    ]
    if not searched:
        return
    moves_N = np.concatenate([moves for _, moves in searched])
    rows_N = np.repeat([row for row, _ in searched], [len(moves) for _, moves in searched])
    labels_N, shares_N = moves_N["label"], moves_N["share"]
    _require_none_wrong("visits.label", labels_N, labels_N >= LABELS)
    _require_none_wrong("visits.share", shares_N, ~((shares_N >= 0) & (shares_N <= 1)))
    if "planes" in rows:
        legal = _are_legal(rows["planes"], rows_N, labels_N)
        _require_none_wrong(
            "visits.label", labels_N, ~legal, "which is not a legal move in its position"
        )
