"""Tables as Parquet: Lichess's published games, and ChessMarro's own positions.

Lichess's (huggingface.co/datasets/Lichess/standard-chess-games) has a column for each tag and one, `movetext`, for the
moves. ChessMarro's has the FEN, the best move and 77 x 8 x 8 booleans, which are not read: the planes are made of the FEN.
Parquet is read from a file only, since its index lies at its end.
"""

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.dumps.formats import evaluations
from pipeline.dumps.formats.positions import find_first_move
from pipeline.dumps.formats.text import position_row, write_tags
from pipeline.errors import DumpError
from pipeline.pgn import tags

MAGIC = b"PAR1"
BATCH = 256
"""Rows that are in memory at a time."""
LARGEST_BATCH = 1 << 28
"""Bytes of BATCH rows, on average of a row group; a file with more is refused."""
MOVETEXT = "movetext"
LICHESS_TAGS = tuple(name for name in tags.TAGS if not name.startswith(("Fianchetto", "Puzzle")))
MARRO_COLUMNS = ("fen_original", "best_uci")
UNREADABLE = "{name} begins like Parquet and cannot be read: {why}"
LONGEST_MOVETEXT = 1 << 20
"""Bytes of one game's movetext; a longer one is dropped, as a game without moves."""


def open_evaluations(name: str, source: Any) -> tuple[str, pa.NativeFile, Any] | None:
    """Open a table of evaluated positions: its input's name, the file, and a hash of the footer; None for another table.

    `source` is a path or an open file. Raises DumpError for a file that cannot be opened or a column of another type.
    """
    try:
        opened = pa.OSFile(os.fsencode(source)) if isinstance(source, str) else pa.PythonFile(source, mode="r")
        schema = pq.read_schema(opened)
        kind = evaluations.recognize(schema)
        if kind is None:
            return None
        evaluations.check_types(name, schema, evaluations.COLUMNS[kind])
        return kind, opened, hash_footer(opened)
    except (OSError, pa.ArrowException) as error:
        raise DumpError(UNREADABLE.format(name=name, why=str(error).splitlines()[0][:200])) from error


def hash_footer(source: Any) -> Any:
    """Return a sha256 of a Parquet file's footer: of its schema, and the places, sizes and bounds of its columns."""
    file = pa.OSFile(os.fsencode(source)) if isinstance(source, os.PathLike) else source
    size = file.size()
    file.seek(max(size - 8, 0))
    length = int.from_bytes(file.read(4), "little")
    file.seek(max(size - 8 - length, 0))
    return hashlib.sha256(file.read(min(length, size) + 8))


def convert_parquet(name: str, on_share: Callable[[float], None]) -> tuple[str, Iterator[str]]:
    """Return the name of a Parquet input and its games as PGN; `on_share` is called with the share of rows that was read.

    Raises DumpError for a file that cannot be opened, or whose columns are unknown.
    """
    try:
        source = pa.memory_map(os.fsencode(name))
        plain = pq.ParquetFile(source, pre_buffer=False)
        texts = [field.name for field in plain.schema_arrow if pa.types.is_string(field.type)]
        # as a dictionary, a value that stands in many rows takes memory once
        file = pq.ParquetFile(source, metadata=plain.metadata, read_dictionary=texts, pre_buffer=False)
    except (OSError, pa.ArrowException) as error:
        raise DumpError(UNREADABLE.format(name=name, why=str(error).splitlines()[0][:200])) from error
    groups = [file.metadata.row_group(index) for index in range(file.metadata.num_row_groups)]
    if any(group.total_byte_size > LARGEST_BATCH // BATCH * max(group.num_rows, BATCH) for group in groups):
        raise DumpError(f"{name} has rows of more than {LARGEST_BATCH // BATCH >> 20} MiB, which no game is")
    columns = file.schema_arrow.names
    if MOVETEXT in columns:
        wanted = [*(tag for tag in LICHESS_TAGS if tag in columns), MOVETEXT]
        return "Lichess games (Parquet)", _convert_rows(name, file, wanted, _write_game, on_share)
    if all(column in columns for column in MARRO_COLUMNS):
        return "ChessMarro positions (Parquet)", _convert_rows(name, file, MARRO_COLUMNS, _write_position, on_share)
    raise DumpError(
        f"{name} is Parquet with the columns {', '.join(columns)[:200]}: games have {MOVETEXT}, positions "
        f"{' and '.join(MARRO_COLUMNS)}, evaluations {', '.join(evaluations.COLUMNS[evaluations.FISHNET])}"
    )


def _convert_rows(
    name: str,
    file: pq.ParquetFile,
    columns: Sequence[str],
    write: Callable[[int, dict[str, str | None]], str],
    on_share: Callable[[float], None],
) -> Iterator[str]:
    """Yield each row as PGN, its values as text, null and NaN as None; raises OSError for damage."""
    number, total = 0, max(file.metadata.num_rows, 1)
    with file:
        batches = file.iter_batches(BATCH, columns=list(columns), use_threads=False)
        while True:
            try:
                batch = next(batches, None)
            except pa.ArrowException as error:
                raise OSError(str(error).splitlines()[0][:200]) from error
            if batch is None:
                return
            values = [_cast_to_texts(name, column, batch.column(column)) for column in columns]
            for row in zip(*values, strict=True):
                number += 1
                yield write(number, dict(zip(columns, row, strict=True)))
            on_share(number / total)


def _cast_to_texts(name: str, column: str, values: pa.Array) -> list[str | None]:
    """Return a column of numbers, dates or strings as texts; raises DumpError for another type."""
    try:
        if pa.types.is_dictionary(values.type):
            words = values.dictionary.cast(pa.string()).to_pylist()
            return [None if at is None else words[at] for at in values.indices.to_pylist()]
        if pa.types.is_floating(values.type):
            values = pc.if_else(pc.is_finite(values), values, None)
        texts: list[str | None] = values.cast(pa.string()).to_pylist()
    except pa.ArrowException as error:
        raise DumpError(f"{name}: the column {column} is {values.type}, and no text can be made of it") from error
    return texts


def _write_game(number: int, row: dict[str, Any]) -> str:
    """Write a row of Lichess's games as the dump has it."""
    movetext = " ".join((row.pop(MOVETEXT) or "").split())
    if len(movetext) > LONGEST_MOVETEXT:
        movetext = ""
    for date in ("Date", "UTCDate"):
        if row.get(date):
            row[date] = row[date][:10].replace("-", ".")
    first = {"Event": row.get("Event") or "?", "Site": row.get("Site") or f"row-{number}"}  # a game begins by its Event
    others = {name: value or "" for name, value in row.items() if name not in first}
    # A space before it keeps hostile movetext from beginning a tag; a blank line behind it closes what it left open.
    return f"{write_tags({**first, **others})}\n {movetext} {others.get('Result', '')}\n\n"


def _write_position(number: int, row: dict[str, Any]) -> str:
    """Write a row of ChessMarro's positions."""
    move = find_first_move(row["best_uci"] or "")
    return position_row(row["fen_original"] or "", move, event="ChessMarro", site=f"row-{number}")
