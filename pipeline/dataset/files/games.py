"""Read `games.parquet`, the table of a dataset's games, and check its values.

Memory is bounded for any file: text is read dictionary-encoded, and refused if it would be too long
decoded.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from engine.json_files import safe_text
from pipeline.dataset.files.columns import GAMES, SPLITS
from pipeline.dataset.files.manifest import damaged_file_error
from pipeline.dataset.files.shards import convert_damage_errors
from pipeline.storage.stores import open_for_arrow

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
"""Columns of `games.parquet` that this program reads, with their types."""
NON_NULL_COLUMNS = ("source", "offset", "length", "plies", "identity")
"""Columns that must not contain nulls."""
VALUE_BOUNDS = {"result": (-1, 1), "offset": (0, 1 << 62)}
"""Minimum and maximum of columns with fewer valid values than their type has."""
GAMES_PER_TABLE = 1 << 16
"""Number of games that are read at a time."""
MAX_TEXT_BYTES = 1 << 28
"""Maximum bytes of a text column in GAMES_PER_TABLE games, since no chunk of a dump is longer."""


def read_game_tables(
    directory: Path, manifest: Mapping[str, Any], columns: Sequence[str]
) -> Iterator[tuple[int, pa.Table]]:
    """Yield `games.parquet` in tables of GAMES_PER_TABLE games, each with its first game's number.

    Raises DatasetError if the file differs from the manifest or has invalid values.
    """
    path, first_game = directory / GAMES, 0
    texts = [name for name in columns if pa.types.is_string(GAMES_COLUMNS[name])]
    with convert_damage_errors(path, "a table of games"), open_for_arrow(path) as source:
        file = pq.ParquetFile(source, read_dictionary=texts)
        _check_footer(file, manifest["games"]["read"], columns)
        for batch in file.iter_batches(GAMES_PER_TABLE, columns=list(columns), use_threads=False):
            table = pa.table({name: _decode(name, batch.column(name)) for name in columns})
            _check_values(table)
            yield first_game, table
            first_game += len(table)


def read_games(directory: Path, manifest: Mapping[str, Any], columns: Sequence[str]) -> pa.Table:
    """Read whole columns of `games.parquet`; raises DatasetError if it is invalid or empty."""
    tables = [table for _, table in read_game_tables(directory, manifest, columns)]
    if not tables:
        raise damaged_file_error(f"{directory / GAMES} holds no games")
    return pa.concat_tables(tables)


def _decode(name: str, column: pa.Array) -> pa.Array:
    """Decode a dictionary-encoded column; raises ValueError if its text would be too long."""
    if not pa.types.is_dictionary(column.type):
        return column
    size = pc.sum(pc.binary_length(column.dictionary).take(column.indices)).as_py() or 0
    if size > MAX_TEXT_BYTES:
        raise ValueError(f"{name} holds {size:,} bytes of text, more than {MAX_TEXT_BYTES:,}")
    return column.cast(pa.string())


def _check_footer(file: pq.ParquetFile, games: int, columns: Sequence[str]) -> None:
    found = file.schema_arrow
    for name in columns:
        types = [found.field(at).type for at in found.get_all_field_indices(name)]
        types = [it.value_type if pa.types.is_dictionary(it) else it for it in types]
        if types != [GAMES_COLUMNS[name]]:
            shown = types[0] if types else "missing"
            raise ValueError(f"its column {name} has type {shown}, not {GAMES_COLUMNS[name]}")
    if file.metadata.num_rows != games:
        raise ValueError(f"it has {file.metadata.num_rows} games, not {games}")


def _check_values(table: pa.Table) -> None:
    table.validate(full=True)  # raises for text that is not UTF-8
    for name in table.schema.names:
        column = table[name]
        if name in NON_NULL_COLUMNS and column.null_count:
            raise ValueError(f"{name} is missing for {column.null_count} games")
        if name == "split":
            wrong = set(pc.unique(column).to_pylist()) - {*SPLITS, None}
            if wrong:
                raise ValueError(f"some games have the unknown split {safe_text(min(wrong))}")
        if name in VALUE_BOUNDS and len(column) > column.null_count:
            low, high = pc.min_max(column).as_py().values()
            if low < VALUE_BOUNDS[name][0] or high > VALUE_BOUNDS[name][1]:
                raise ValueError(f"{name} has values from {low} to {high}, which are out of range")
