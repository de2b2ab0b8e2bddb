"""Shards (Parquet files of packed rows) and the manifest of a dataset.

A dataset's folder holds `train-00000-0.parquet ...` (one or more shards per chunk of the dump),
`val-...`, `test-...`, `games.parquet`, `CARD.md` and `manifest.json`. Stability: FORMAT_VERSION,
ENCODING_VERSION and `moves_hash()` stand in the manifest; a changed column or bit is a new version.
The manifest is published last: a folder without one is not a dataset.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from engine.encoding.planes import ENCODING_VERSION, moves_hash
from engine.json_files import check, read_json, shown
from pipeline.dataset.files.columns import (
    BATCH_SENTINELS,
    BY_NAME,
    EARLIER_MOVES,
    FORMAT_VERSION,
    OPTIONAL,
    PLANE_COLUMNS,
    Form,
    schema,
    writer_options,
)
from pipeline.dataset.files.layout import GAMES as GAMES
from pipeline.dataset.files.layout import LARGEST_MANIFEST, MOST_GAMES
from pipeline.dataset.files.layout import MANIFEST as MANIFEST
from pipeline.dataset.files.layout import ROW_GROUP as ROW_GROUP
from pipeline.dataset.files.layout import SPLITS as SPLITS
from pipeline.dataset.files.stored_planes import array_numbers, plane_arrays, whole_column
from pipeline.dataset.files.stored_planes import number_array as number_array
from pipeline.errors import DatasetError
from pipeline.storage.job_folder import BUILDING
from pipeline.storage.stores import file_hash as file_hash
from pipeline.storage.stores import publish as publish
from pipeline.storage.stores import publish_json as publish_json

# ---------------------------------------------------------------- rows written


def rows_table(
    packed_RW: NDArray[np.uint64], columns: Mapping[str, NDArray[Any]], form: Form = "all"
) -> pa.Table:
    """Return a shard's table of packed positions (pipeline/dataset/files/stored_planes.py) and the
    other columns.

    BATCH_SENTINELS stand for null. `visits` and `root_value` are null if they are not given;
    optional columns are left out.
    """
    arrays = plane_arrays(packed_RW, form)
    wanted = schema(form, columns.keys())
    for field in list(wanted)[len(arrays) :]:
        if field.name not in columns:
            assert field.nullable, f"column {field.name} is missing"
            arrays.append(pa.nulls(len(packed_RW), field.type))
            continue
        values = columns[field.name].astype(field.type.to_pandas_dtype(), copy=False)
        missing = BATCH_SENTINELS.get(field.name)
        arrays.append(number_array(values, None if missing is None else values != missing))
    return pa.Table.from_arrays(arrays, schema=wanted)


def write_rows(table: pa.Table, path: Any) -> None:
    """Write a shard's table as Parquet to a path or an open file."""
    pq.write_table(table, path, row_group_size=ROW_GROUP, **writer_options(table.schema))


def write_packed(
    packed_RW: NDArray[np.uint64], columns: Mapping[str, NDArray[Any]], form: Form, target: Any
) -> None:
    """Write packed rows as `rows_table` and `write_rows` would, one row group at a time."""
    stored = schema(form, columns.keys())
    with pq.ParquetWriter(target, stored, **writer_options(stored)) as writer:
        for first in range(0, len(packed_RW), ROW_GROUP):
            rows = slice(first, first + ROW_GROUP)
            mine = {name: values[rows] for name, values in columns.items()}
            writer.write_table(rows_table(packed_RW[rows], mine, form))


def game_numbers(game_R: NDArray[Any], first_game: int) -> NDArray[np.uint32]:
    """Return the column `game` of rows whose games are numbered within a chunk; DatasetError above
    MOST_GAMES.
    """
    number_R = game_R.astype(np.int64) + first_game
    if len(number_R) and not 0 <= int(number_R.min()) <= int(number_R.max()) < MOST_GAMES:
        raise DatasetError(
            f"game number {int(number_R.max()):,} is beyond the {MOST_GAMES:,} games of a dataset: "
            f"ingest the dumps into "
            "several, and join them"
        )
    return number_R.astype(np.uint32)


def earlier_columns(
    earlier_RH: NDArray[np.uint16], picked_K: NDArray[np.int64]
) -> dict[str, NDArray[np.uint16]]:
    """Return the picked rows of `pipeline.pgn.replay.earlier_moves` as the columns
    EARLIER_MOVES.
    """
    return dict(
        zip(EARLIER_MOVES, np.ascontiguousarray(earlier_RH.take(picked_K, axis=0).T), strict=False)
    )


# ---------------------------------------------------------------- rows read

Batch = dict[str, NDArray[Any]]
"""Rows as numpy arrays by column."""


def batch_columns(table: pa.Table) -> Batch:
    """Convert a table's columns, those of planes left out, to numpy arrays by name.

    Null is BATCH_SENTINELS, or NaN for floats. `visits` is an array of objects: None for null, else
    the records `label` and `share` of its moves.
    """
    batch: Batch = {}
    for field in table.schema:
        if field.name in _PLANES:
            continue
        column = whole_column(table.column(field.name))
        if field.name == "visits":
            batch[field.name] = _visits(column)
        elif column.null_count:
            batch[field.name] = array_numbers(
                column.fill_null(BATCH_SENTINELS.get(field.name, float("nan")))
            )
        else:
            batch[field.name] = array_numbers(column)
    return batch


_PLANES = {column.name for columns in PLANE_COLUMNS.values() for column in columns}


def null_column(name: str, rows: int) -> NDArray[Any]:
    """Return a batch's column of nulls, for an optional column that a shard lacks."""
    return np.full(
        rows, BATCH_SENTINELS.get(name, np.nan), dtype=OPTIONAL[name].type.to_pandas_dtype()
    )


def _visits(column: pa.ListArray) -> NDArray[Any]:
    """Return each row's visits, views of one array of records; None for null."""
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


def check_values(name: str, values_R: NDArray[Any], games: int | None = None) -> None:
    """Raise ValueError, naming column and row, for a value outside the column's bounds; `games`
    bounds the column `game`.
    """
    column = BY_NAME[name]
    bounds = (0, games - 1) if name == "game" and games is not None else column.bounds
    if bounds is None or not len(values_R):
        return
    low, high = bounds
    if low <= values_R.min() <= values_R.max() <= high:
        return
    wrong = (values_R < low) | (values_R > high)  # NaN, which stands for null, compares false
    for valid in (column.none, column.null):
        if valid is not None:
            wrong &= values_R != valid
    require_valid(name, values_R, wrong)


def require_valid(
    name: str, values: NDArray[Any], wrong: NDArray[np.bool_], why: str = "out of range"
) -> None:
    """Raise ValueError, naming column and row, if any value is wrong."""
    if wrong.any():
        row = int(np.argmax(wrong))
        raise ValueError(f"{name} is {values[row]} in row {row} of a row group, {why}")


# ---------------------------------------------------------------- manifests


def read_manifest(directory: Path) -> dict[str, Any]:
    """Read and check a dataset's manifest.

    Raises DatasetError for a folder without one, one that does not fit
    pipeline/dataset/files/schemas.py, or another format or encoding.
    """
    path = directory / MANIFEST
    if not directory.is_dir():
        raise DatasetError(
            f"{directory} is not a directory: a dataset is made by `fianchetto ingest DUMP --out "
            f"DIR`"
        )
    if not path.is_file():
        hint = (
            "an ingest was stopped there: run it again to finish"
            if (directory / BUILDING).is_dir()
            else "no dataset"
        )
        raise DatasetError(f"{directory} has no {MANIFEST} ({hint})")
    manifest = read_json(path, DatasetError, largest=LARGEST_MANIFEST)
    if not isinstance(manifest, dict):
        raise DatasetError(f"{path} is not a manifest of this project")
    versions = {
        "format_version": FORMAT_VERSION,
        "encoding_version": ENCODING_VERSION,
        "moves_hash": moves_hash(),
    }
    for name, ours in versions.items():
        if manifest.get(name) != ours:
            raise DatasetError(
                f"{path} has {name} {shown(manifest.get(name))}, this program {ours!r}",
                remedy="ingest the dump again",
                code="damaged",
            )
    # pydantic, which workers that encode do without
    from pipeline.dataset.files.schemas import Manifest

    check(path, manifest, Manifest, DatasetError, hint=": it is damaged")
    return manifest


def read_note(path: Path) -> dict[str, Any]:
    """Read and check the note of a chunk of an unfinished ingest; raises DatasetError."""
    from pipeline.dataset.files.schemas import ChunkNote

    note = read_json(path, DatasetError)
    hint = f": it is damaged; delete {path.parents[2]} and ingest again"
    check(path, note, ChunkNote, DatasetError, hint=hint)
    return note  # type: ignore[no-any-return]
