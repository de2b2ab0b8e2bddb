"""Shards (format version 3; version 2 is read): Parquet files of packed rows, and the manifest that vouches for them.

A dataset directory holds `train-00000-0.parquet ...` (a shard or more a chunk of the dump) or `train-00000-of-00016.parquet`
and on (drawn from the whole), `val-...`, `test-...`, `games.parquet` and `manifest.json`.
Stability: FORMAT_VERSION, ENCODING_VERSION and `moves_hash()` stand in the manifest; a changed column or bit is a new
version. Files appear under their final names whole (`pipeline.storage.stores`), the manifest last: a directory without
one is not a dataset.
"""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from engine.encoding.planes import ENCODING_VERSION, moves_hash
from engine.encoding.views import LAST_MOVES, NO_LAST_MOVE
from engine.json_files import check, read_json, shown
from pipeline.dataset.files.layout import GAMES as GAMES
from pipeline.dataset.files.layout import LARGEST_GROUP as LARGEST_GROUP
from pipeline.dataset.files.layout import MANIFEST as MANIFEST
from pipeline.dataset.files.layout import PARTS as PARTS
from pipeline.dataset.files.layout import ROW_GROUP as ROW_GROUP
from pipeline.dataset.files.layout import RUN as RUN
from pipeline.dataset.files.layout import SHARD_NOTE as SHARD_NOTE
from pipeline.dataset.files.layout import SPLITS as SPLITS
from pipeline.dataset.files.permute import gather_columns
from pipeline.dataset.files.stored_planes import (
    COMPACT_BY,
    DICTIONARIES,
    Form,
    Stored,
    array_numbers,
    form_of,
    packed_columns,
    plane_columns,
    plane_fields,
    whole_column,
)
from pipeline.dataset.files.stored_planes import number_array as number_array
from pipeline.dataset.files.vouch import hash_of, vouch
from pipeline.errors import DatasetError
from pipeline.storage.stores import file_hash as file_hash
from pipeline.storage.stores import opened
from pipeline.storage.stores import publish as publish
from pipeline.storage.stores import publish_json as publish_json

FORMAT_VERSION = 3
READ_VERSIONS = (2, 3)
"""Format versions that are read."""

COLUMN_ENCODING = {"result": "DELTA_BINARY_PACKED", "eval": "DELTA_BINARY_PACKED"}
"""Encodings of columns where BYTE_STREAM_SPLIT takes more bytes or time."""
COMPRESSION = dict.fromkeys(("result", "eval", "clock", "root_value", "black_to_move"), "none") | dict.fromkeys(
    (
        *("label", "promotion", "castling", "ep_file", "halfmove", "repetition", "ply", "plies", "game"),
        *("last_move", "elo", "opponent_elo", "base", "increment"),
    ),
    "lz4",
)
"""How columns are compressed that zstd makes little smaller for its time; Parquet's `lz4` is LZ4_RAW (docs/log.md)."""

VISITS_LEAVES = ("visits.list.element.label", "visits.list.element.share")
"""What Parquet calls the columns of `visits`."""

BATCH_SENTINELS = {
    **dict.fromkeys(LAST_MOVES, NO_LAST_MOVE),
    "eval": -32768,
    "clock": 65535,
    "elo": 0,
    "opponent_elo": 0,
    "base": 65535,
    "increment": 255,
    "simulations": 0,
}
"""What stands for null in a batch's arrays, by column."""


EARLIER = dict.fromkeys(LAST_MOVES[1:], pa.uint16())
"""Columns of the half-moves before the last one, as many as `ingest --history` keeps."""
BESIDES = EARLIER | {"best_value": pa.float32(), "simulations": pa.uint16()}
"""Columns that some shards have behind the others, null of rows of those that do not; the last two are of a reanalysis."""


def earlier_columns(earlier_RH: NDArray[np.uint16], picked_K: NDArray[np.int64]) -> dict[str, NDArray[np.uint16]]:
    """Return the columns of EARLIER of some rows, of what `pipeline.pgn.replay.earlier_moves` gives of all."""
    return dict(zip(EARLIER, gather_columns(earlier_RH, picked_K), strict=False))


def schema(form: Stored = "all", besides: Collection[str] = ()) -> pa.Schema:
    """Return the columns of a shard, those of its planes first (datasets/README.md), and those of BESIDES that are named."""
    visits = pa.list_(pa.struct([pa.field("label", pa.uint16(), False), pa.field("share", pa.float32(), False)]))
    required = {
        "label": pa.uint16(),
        "promotion": pa.uint8(),
        "castling": pa.uint8(),
        "ep_file": pa.uint8(),
        "halfmove": pa.uint8(),
        "repetition": pa.uint8(),
        "result": pa.int8(),
        "ply": pa.uint16(),
        "plies": pa.uint16(),
        "game": pa.uint32(),
    }
    optional = {
        "last_move": pa.uint16(),
        "eval": pa.int16(),
        "clock": pa.uint16(),
        "elo": pa.uint16(),
        "opponent_elo": pa.uint16(),
        "base": pa.uint16(),
        "increment": pa.uint8(),
        "visits": visits,
        "root_value": pa.float32(),
        **{name: kind for name, kind in BESIDES.items() if name in besides},
    }
    fields = plane_fields(form) + [pa.field(name, kind, nullable=False) for name, kind in required.items()]
    fields += [pa.field(name, kind, nullable=True) for name, kind in optional.items()]
    version = 2 if form == "bytes" else FORMAT_VERSION
    metadata = {"fianchetto_format": str(version), "encoding_version": str(ENCODING_VERSION)}
    return pa.schema(fields, metadata={**metadata, "moves_hash": moves_hash()})


MOST_GAMES = 1 << 32
"""Games that the column `game` can number."""


def game_numbers(game_R: NDArray[Any], first_game: int) -> NDArray[np.uint32]:
    """Return the column `game`: numbers within a chunk, counted on from the chunk's first; DatasetError beyond MOST_GAMES."""
    number_R = game_R.astype(np.int64) + first_game
    if len(number_R) and not 0 <= int(number_R.min()) <= int(number_R.max()) < MOST_GAMES:
        raise DatasetError(
            f"game number {int(number_R.max()):,} is beyond the {MOST_GAMES:,} games of a dataset: ingest the dumps into "
            "several, and join them"
        )
    return number_R.astype(np.uint32)


COLUMNS = ("planes", *(field.name for field in schema("bytes") if field.name != "planes"))
"""The columns of a batch, however planes are stored; those of BESIDES may be asked for too."""


def rows_table(planes_RP: NDArray[np.uint64], columns: Mapping[str, NDArray[Any]], form: Stored = "all") -> pa.Table:
    """Return a shard's table of rows of planes uint64[R, 77].

    `columns` are the others, BATCH_SENTINELS standing for null; `visits` and `root_value` are null where they are not given,
    those of BESIDES left out.
    """
    kinds = {field.name: field.type.to_pandas_dtype() for field in schema(form) if field.name in COMPACT_BY}
    by = {name: columns[name].astype(kind, copy=False) for name, kind in kinds.items()}
    return _table(plane_columns(form, planes_RP, by), columns, len(planes_RP), form)


def _table(arrays: list[pa.Array], columns: Mapping[str, NDArray[Any]], rows: int, form: Stored) -> pa.Table:
    """Return a shard's table of the arrays of its planes and the other columns."""
    wanted = schema(form, columns.keys())
    for field in list(wanted)[len(arrays) :]:
        if field.name not in columns:
            assert field.nullable, f"column {field.name} is missing"
            arrays.append(pa.nulls(rows, field.type))
            continue
        values = columns[field.name].astype(field.type.to_pandas_dtype(), copy=False)
        missing = BATCH_SENTINELS.get(field.name)
        arrays.append(number_array(values, None if missing is None else values != missing))
    return pa.Table.from_arrays(arrays, schema=wanted)


def writer_options(stored: pa.Schema, compression_level: int = 1) -> dict[str, Any]:
    """Return how a shard is written: in encodings and codecs that pyarrow, polars, DuckDB and pandas read (docs/log.md)."""
    dictionaries = [name for name in DICTIONARIES if name in stored.names]
    encoding = {
        field.name: "PLAIN"
        if pa.types.is_fixed_size_binary(field.type) or pa.types.is_boolean(field.type)
        else COLUMN_ENCODING.get(field.name, "BYTE_STREAM_SPLIT")
        for field in stored
        if field.name != "visits" and field.name not in dictionaries
    }
    leaves = [name for field in stored for name in (VISITS_LEAVES if field.name == "visits" else (field.name,))]
    compression = {name: COMPRESSION.get(name, "zstd") for name in leaves}
    return {
        "write_batch_size": ROW_GROUP,
        "max_rows_per_page": ROW_GROUP,
        "compression": compression,
        "compression_level": {name: compression_level for name, codec in compression.items() if codec == "zstd"},
        "use_dictionary": dictionaries,
        "column_encoding": encoding,
        "write_statistics": ["label", "ply", "elo", "game"],
        "store_schema": True,
    }


def write_rows(table: pa.Table, path: Any, compression_level: int = 1) -> None:
    """Write a shard's table as Parquet to a path or an open file."""
    pq.write_table(table, path, row_group_size=ROW_GROUP, **writer_options(table.schema, compression_level))


def packed_table(packed_RW: NDArray[np.uint64], columns: Mapping[str, NDArray[Any]], form: Form) -> pa.Table:
    """Return a shard's table of packed positions (`pipeline.dataset.files.stored_planes`), as `rows_table` does of planes."""
    return _table(packed_columns(packed_RW, form), columns, len(packed_RW), form)


def write_packed(packed_RW: NDArray[np.uint64], columns: Mapping[str, NDArray[Any]], form: Form, target: Any) -> None:
    """Write what `write_rows` writes of `packed_table`, a row group at a time, in the memory of one."""
    stored = schema(form, columns.keys())
    with pq.ParquetWriter(target, stored, **writer_options(stored)) as writer:
        for first in range(0, len(packed_RW), ROW_GROUP):
            rows = slice(first, first + ROW_GROUP)
            mine = {name: values[rows] for name, values in columns.items()}
            writer.write_table(packed_table(packed_RW[rows], mine, form))


LARGEST_MANIFEST = 1 << 28


def read_manifest(directory: Path) -> dict[str, Any]:
    """Read and check a dataset's manifest.

    Raises DatasetError for a directory without one, one that is not by `pipeline.dataset.files.schemas`, or another
    format or encoding.
    """
    path = directory / MANIFEST
    if not directory.is_dir():
        raise DatasetError(f"{directory} is not a directory: a dataset is made by `fianchetto ingest DUMP --out DIR`")
    if not path.is_file():
        hint = "an ingest was stopped there: run it again to finish" if (directory / PARTS).is_dir() else "no dataset"
        raise DatasetError(f"{directory} has no {MANIFEST} ({hint})")
    manifest = read_json(path, DatasetError, largest=LARGEST_MANIFEST)
    if not isinstance(manifest, dict):
        raise DatasetError(f"{path} is not a manifest of this project")
    for name, ours in (
        ("format_version", READ_VERSIONS),
        ("encoding_version", (ENCODING_VERSION,)),
        ("moves_hash", (moves_hash(),)),
    ):
        if manifest.get(name) not in ours:
            raise DatasetError(
                f"{path} has {name} {shown(manifest.get(name))}, this program {ours[-1]!r}: ingest the dump again"
            )
    from pipeline.dataset.files.schemas import Manifest  # pydantic is no matter of a worker that encodes

    check(path, manifest, Manifest, DatasetError, hint=": it is damaged")
    return manifest


def read_note(path: Path, *, of_shard: bool = False) -> dict[str, Any]:
    """Read and check what an unfinished ingest noted of a chunk, or of a shard of set size; raises DatasetError."""
    from pipeline.dataset.files.schemas import ChunkNote, ShardNote

    note = read_json(path, DatasetError)
    hint = f": it is damaged; delete {path.parent.parent} and ingest again"
    check(path, note, ShardNote if of_shard else ChunkNote, DatasetError, hint=hint)
    return note  # type: ignore[no-any-return]


def shard_paths(directory: Path, split: str) -> list[Path]:
    """Give the files of a split as the manifest lists them; raises DatasetError where a file differs, or there is none."""
    manifest = read_manifest(directory)
    if split not in SPLITS:
        raise DatasetError(f"no split {split!r}: there are {', '.join(SPLITS)}")
    paths = [directory / entry["name"] for entry in manifest["files"] if entry.get("split") == split]
    vouch(directory, manifest)
    if not paths:
        raise DatasetError(f"{directory} has no positions in its {split} split")
    return paths


def verify(directory: Path) -> list[str]:
    """Compare every file with the manifest: give a line for each that is missing or differs in size, hash, rows or form."""
    manifest, wrong = read_manifest(directory), []
    stored = manifest.get("planes") or "bytes"  # a manifest of format version 2 does not say
    for entry in manifest["files"]:
        path = directory / entry["name"]
        if not path.is_file():
            wrong.append(f"{path.name}: missing")
        elif path.stat().st_size != entry["bytes"] or hash_of(path) != entry["sha256"]:
            wrong.append(f"{path.name}: differs from its hash")
        elif (footer := _footer(path)) is None or footer.num_rows != entry["rows"]:
            wrong.append(f"{path.name}: differs in rows")
        elif entry["split"] is not None and (form := form_of(footer.schema.names)) != stored:
            wrong.append(f"{path.name}: its planes are of the form {form}, and the manifest says {stored}")
    return wrong


def _footer(path: Path) -> pq.FileMetaData | None:
    """Read the footer of a Parquet file; None where it has none that can be read."""
    try:
        return pq.read_metadata(opened(path))
    except (OSError, ValueError, pa.ArrowException):
        return None


def _visits(column: pa.ListArray) -> NDArray[Any]:
    """Give each row's visits, views of one array of records; None for a row that was not searched."""
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


Batch = dict[str, NDArray[Any]]
"""Rows as numpy arrays by column."""


def batch_columns(table: pa.Table) -> Batch:
    """Turn rows of a table into a batch without planes: numpy arrays by column name, BATCH_SENTINELS for null.

    `root_value` and `best_value` are NaN for null, and `visits` has an object a row: None for null, or
    the records `label` and `share` of its moves.
    """
    batch: Batch = {}
    for name in table.schema.names:
        if name not in (*COLUMNS, *BESIDES) or name == "planes":
            continue
        column = whole_column(table.column(name))
        if name == "visits":
            batch[name] = _visits(column)
        elif name in ("root_value", "best_value"):
            batch[name] = array_numbers(column.fill_null(float("nan")))
        elif column.null_count:
            batch[name] = array_numbers(column.fill_null(BATCH_SENTINELS[name]))
        else:
            batch[name] = array_numbers(column)
    return batch
