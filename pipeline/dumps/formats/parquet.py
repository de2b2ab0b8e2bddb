"""Read the tables of tables.py, such as Lichess's games and puzzles, from Parquet.

Text may be stored as string, large_string, string_view or dictionary. The planes in ChessMarro's
tables are not read, since they follow from the FEN. Tables of evaluated positions can also be read
from a URL, others only from a file.
"""

import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.dumps.formats import evaluations
from pipeline.dumps.formats.evaluations import is_text
from pipeline.dumps.formats.tables import READABLE_TABLES, Table, recognize_columns
from pipeline.errors import DumpError

PARQUET_MAGIC = b"PAR1"
BATCH_ROWS = 256
"""Rows to hold in memory at a time."""
MAX_ROW_BYTES = 1 << 20
"""Maximum bytes per row, averaged over a row group; a file with larger rows is refused."""


def open_evaluations(name: str, source: Any) -> tuple[str, pa.NativeFile, Any] | None:
    """Open a table of evaluated positions; return its kind, the open file and its footer's hash.

    Returns None for any other table. `source` is a path or an open file. Raises DumpError for a
    file that cannot be opened or a column of the wrong type.
    """
    with _refuse_damage(name):
        is_path = isinstance(source, str)
        opened = pa.OSFile(os.fsencode(source)) if is_path else pa.PythonFile(source, mode="r")
        schema = pq.read_schema(opened)
        kind = evaluations.recognize_input(schema)
        if kind is None:
            return None
        evaluations.check_types(name, schema, evaluations.INPUT_COLUMNS[kind])
        return kind, opened, hash_footer(opened)


@contextmanager
def _refuse_damage(name: str) -> Iterator[None]:
    try:
        yield
    except (OSError, pa.ArrowException) as error:
        reason = str(error).splitlines()[0][:200]
        raise DumpError(f"{name} looks like Parquet but cannot be read: {reason}") from error


def hash_footer(source: Any) -> Any:
    """Return a SHA-256 object for a Parquet file's footer, which identifies the whole file.

    The footer has the schema, and the offsets, sizes and statistics of the columns.
    """
    file = pa.OSFile(os.fsencode(source)) if isinstance(source, os.PathLike) else source
    size = file.size()
    file.seek(max(size - 8, 0))
    length = int.from_bytes(file.read(4), "little")
    file.seek(max(size - 8 - length, 0))
    return hashlib.sha256(file.read(min(length, size) + 8))


def convert_parquet(name: str, on_share: Callable[[float], None]) -> tuple[str, Iterator[str]]:
    """Return the name of a Parquet input and its games as PGN.

    `on_share` is called with the share of rows read so far. Raises DumpError for a file that cannot
    be opened, or has unknown or repeated columns or very long rows.
    """
    with _refuse_damage(name):
        source = pa.memory_map(os.fsencode(name))
        plain = pq.ParquetFile(source, pre_buffer=False)
        text_columns = [field.name for field in plain.schema_arrow if is_text(field.type)]
        # as a dictionary, a repeated value is in memory only once
        file = pq.ParquetFile(
            source, metadata=plain.metadata, read_dictionary=text_columns, pre_buffer=False
        )
    for index in range(file.metadata.num_row_groups):
        group = file.metadata.row_group(index)
        if group.total_byte_size > MAX_ROW_BYTES * max(group.num_rows, BATCH_ROWS):
            raise DumpError(
                f"{name} has rows of more than {MAX_ROW_BYTES >> 20} MiB, too large for a game"
            )
    header = file.schema_arrow.names
    try:
        table = recognize_columns(header)
    except DumpError as error:
        raise DumpError(f"{name} {error}") from error
    if table is None:
        raise DumpError(
            f"{name} is Parquet with the columns {', '.join(header)[:200]}: {READABLE_TABLES}"
        )
    if repeated := [header[at] for at in table.columns.values() if header.count(header[at]) > 1]:
        raise DumpError(f"{name}: the column {repeated[0]} occurs twice")
    return f"{table.name} (Parquet)", _convert_rows(name, file, table, on_share)


def _convert_rows(
    name: str, file: pq.ParquetFile, table: Table, on_share: Callable[[float], None]
) -> Iterator[str]:
    """Yield each row as PGN. Raises OSError for damage, DumpError for a column of a wrong type."""
    number, total = 0, max(file.metadata.num_rows, 1)
    header = file.schema_arrow.names
    columns = {key: header[at] for key, at in table.columns.items()}
    names = list(columns.values())
    try:
        for batch in file.iter_batches(BATCH_ROWS, columns=names, use_threads=False):
            values = [_cast_to_texts(name, column, batch.column(column)) for column in names]
            for row in zip(*values, strict=True):
                number += 1
                yield table.format_row(f"row-{number}", dict(zip(columns, row, strict=True)))
            on_share(number / total)
    except pa.ArrowException as error:
        raise OSError(str(error).splitlines()[0][:200]) from error
    finally:
        file.close()


def _cast_to_texts(name: str, column: str, values: pa.Array) -> list[str]:
    """Convert a column of numbers, dates, strings or lists of strings to strings.

    Null and numbers that are not finite become "". Raises DumpError for other types.
    """
    try:
        if pa.types.is_dictionary(values.type):
            words = values.dictionary.cast(pa.string()).to_pylist()
            return ["" if at is None else words[at] or "" for at in values.indices.to_pylist()]
        if pa.types.is_floating(values.type):
            values = pc.if_else(pc.is_finite(values), values, None)
        is_list = pa.types.is_list(values.type) or pa.types.is_large_list(values.type)
        if is_list and is_text(values.type.value_type):  # the themes of puzzles
            values = pc.binary_join(values.cast(pa.list_(pa.string())), " ")
        return values.cast(pa.string()).fill_null("").to_pylist()  # type: ignore[no-any-return]
    except pa.ArrowException as error:
        problem = f"is {values.type}, which cannot be converted to text"
        raise DumpError(f"{name}: the column {column} {problem}") from error
