"""Read `games.parquet`, the table of a dataset's games, and check its values.

Memory is bounded whatever the file says: text is read as a dictionary, and decoded if it is not too
long.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from engine.json_files import shown
from pipeline.dataset.files.layout import GAMES, SPLITS
from pipeline.dataset.files.shards import damaged, reading
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
        raise damaged(f"{directory / GAMES} holds no games")
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
