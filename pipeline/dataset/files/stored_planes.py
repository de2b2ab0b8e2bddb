"""The one place that makes planes of what a shard stores, and the other way.

form       columns                                                                bytes a row, packed
all        twelve bitboards and the turn, a uint64 each; move planes as binary     48     any reader has all 77 planes
compact    four bits of each square's piece code as four uint64; whose turn it is  16     this module makes the 77 planes
bytes      `planes`, one value of 616 bytes                                        42     format version 2, read only

`all` and `compact` are of format version 3, which pyarrow, polars, DuckDB and pandas read; the byte-split values of version 2
pyarrow alone. A packed position (uint64[R, PACKED]) is what a compact shard holds of a row, and what is made of its planes.

Axes: R rows, P planes, W words of a packed position, C columns.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from engine.board.position import MAX_MOVES, WORDS
from engine.encoding.planes import PIECE_PLANES, PLANE_BYTES, PLANES
from pipeline.dataset.files.plane_kernels import (
    BOARDS,
    ILLEGAL_LABEL,
    MANY_MOVES,
    NO_KINGS,
    PACKED,
    PIECES,
    WIDTHS,
    join_planes,
    pack_columns,
    pack_positions,
    set_up_positions,
    split_planes,
    split_positions,
    unpack_positions,
)
from pipeline.dataset.files.plane_pages import read_planes as read_byte_split

Form = Literal["all", "compact"]
Stored = Literal["all", "compact", "bytes"]
FORMS: tuple[Form, ...] = ("all", "compact")

PIECE_COLUMNS = (
    *(
        f"{side}_{piece}"
        for piece in ("pawns", "knights", "bishops", "rooks", "queens", "king")
        for side in ("own", "opponent")
    ),
    "turn",
)
"""Planes 0..12, a uint64 each; `turn` is zero or all ones."""
MOVE_COLUMNS = {"moves_1": 8, "moves_2": 8, "moves_3": 8, "moves_4": 8, "moves_5_to_7": 24, "moves_knight": 8}
"""Planes 13..76 by the distance of the move: little-endian uint64 of a value, a plane each."""
DICTIONARIES = ("own_king", "opponent_king", "turn", "moves_3", "moves_4", "moves_5_to_7", "moves_knight")
"""Columns that hold the same few values again and again: a dictionary packs them best, and quickest."""
BOARD_COLUMNS = tuple(f"piece_bit_{bit}" for bit in range(BOARDS))
BLACK = "black_to_move"
COMPACT_BY = ("castling", "ep_file")
"""Columns besides that the planes of a compact row follow from."""
assert len(PIECE_COLUMNS) == PIECE_PLANES + 1 == PIECES
assert tuple(MOVE_COLUMNS.values()) == WIDTHS


def plane_fields(form: Stored) -> list[pa.Field]:
    """Return the columns that planes are stored in."""
    if form == "bytes":
        kinds: dict[str, pa.DataType] = {"planes": pa.binary(PLANE_BYTES)}
    elif form == "compact":
        kinds = {**dict.fromkeys(BOARD_COLUMNS, pa.uint64()), BLACK: pa.bool_()}
    else:
        kinds = dict.fromkeys(PIECE_COLUMNS, pa.uint64())
        kinds |= {name: pa.binary(8 * words) for name, words in MOVE_COLUMNS.items()}
    return [pa.field(name, kind, nullable=False) for name, kind in kinds.items()]


def form_of(names: list[str]) -> Stored:
    """Return the form of a shard by the names of its columns; `all` of what is no shard."""
    if "planes" in names:
        return "bytes"
    return "compact" if BOARD_COLUMNS[0] in names else "all"


# ---------------------------------------------------------------- arrays


def number_array(values: NDArray[Any], known: NDArray[np.bool_] | None = None) -> pa.Array:
    """Make an Arrow array of numbers without copying them; those that are not `known` are null.

    Not by `pa.array`, whose first call imports pandas where it is installed, as those of `to_numpy` and `pq.read_table` do: a
    third of the time a worker takes to start.
    """
    values = np.ascontiguousarray(values)
    valid = None if known is None or known.all() else pa.py_buffer(np.packbits(known, bitorder="little"))
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), len(values), [valid, pa.py_buffer(values)])


def array_numbers(array: pa.Array) -> NDArray[Any]:
    """Return an Arrow array of numbers, none of them null, as numpy has it without copying: the inverse of `number_array`."""
    kind = array.type.to_pandas_dtype()
    if not len(array):
        return np.empty(0, dtype=kind)
    return np.frombuffer(array.buffers()[1], dtype=kind, count=array.offset + len(array))[array.offset :]


def whole_column(column: pa.ChunkedArray) -> pa.Array:
    """Return a column as one array; a single piece is given as it is, since joining would copy it."""
    pieces = column.chunks
    if len(pieces) == 1:
        return pieces[0]
    return pa.concat_arrays(pieces) if pieces else pa.nulls(0, column.type)


def _binary(words_RC: NDArray[np.uint64]) -> pa.Array:
    data = pa.py_buffer(np.ascontiguousarray(words_RC, dtype="<u8"))
    return pa.FixedSizeBinaryArray.from_buffers(pa.binary(8 * words_RC.shape[1]), len(words_RC), [None, data])


def _words(array: pa.Array, words: int) -> NDArray[np.uint64]:
    """Return the words of a binary column, uint64[R, words], without copying."""
    if not len(array):
        return np.empty((0, words), dtype=np.uint64)
    end = array.offset + len(array)
    return np.frombuffer(array.buffers()[1], dtype="<u8", count=words * end).reshape(end, words)[array.offset :]


# ---------------------------------------------------------------- rows to columns


def plane_columns(form: Stored, rows_RP: NDArray[np.uint64], columns: Mapping[str, NDArray[Any]]) -> list[pa.Array]:
    """Return the columns of `plane_fields` for rows of planes; `columns` are the others, of them COMPACT_BY."""
    if form == "bytes":
        return [_binary(rows_RP)]
    if form == "compact":
        return packed_columns(packed(rows_RP, columns), form)
    pieces_CR, groups = _empty_columns(len(rows_RP))
    split_planes(np.ascontiguousarray(rows_RP, dtype=np.uint64), pieces_CR, groups)
    return [*map(number_array, pieces_CR), *map(_binary, groups)]


def _empty_columns(rows: int) -> tuple[NDArray[np.uint64], tuple[NDArray[np.uint64], ...]]:
    """Make room for the columns of the form `all`."""
    groups = tuple(np.empty((rows, words), dtype=np.uint64) for words in MOVE_COLUMNS.values())
    return np.empty((len(PIECE_COLUMNS), rows), dtype=np.uint64), groups


def packed(rows_RP: NDArray[np.uint64], columns: Mapping[str, NDArray[Any]]) -> NDArray[np.uint64]:
    """Pack rows of planes; `columns` are COMPACT_BY of them."""
    out_RW = np.empty((len(rows_RP), PACKED), dtype=np.uint64)
    rows_RP = np.ascontiguousarray(rows_RP, dtype=np.uint64)
    pack_positions(rows_RP, columns["castling"], columns["ep_file"], out_RW)
    return out_RW


def packed_columns(packed_RW: NDArray[np.uint64], form: Form) -> list[pa.Array]:
    """Return the columns of `plane_fields` for packed positions of a game."""
    if form == "all":
        pieces_CR, groups = _empty_columns(len(packed_RW))
        split_positions(packed_RW, pieces_CR, groups)
        return [*map(number_array, pieces_CR), *map(_binary, groups)]
    black = pa.py_buffer(np.packbits((packed_RW[:, BOARDS] & np.uint64(1)).astype(np.bool_), bitorder="little"))
    boards = [number_array(packed_RW[:, board]) for board in range(BOARDS)]
    return [*boards, pa.BooleanArray.from_buffers(pa.bool_(), len(packed_RW), [None, black])]


_NO_LABELS = np.empty(0, dtype=np.uint16)
_STRANGE = {
    NO_KINGS: "planes: the row is no position: it has not one king a side",
    MANY_MOVES: f"planes: the row is no position: it has more than {MAX_MOVES} moves",
    ILLEGAL_LABEL: "its label is no legal move",
}


class StrangeRowError(ValueError):
    """A row whose packed position or label no shard of this project has; `row` says which."""

    def __init__(self, row: int, why: int) -> None:
        super().__init__(f"{_STRANGE[why]}, in row {row} of a row group")
        self.row, self.why = row, _STRANGE[why]


def unpacked(
    packed_RW: NDArray[np.uint64],
    labels_R: NDArray[np.uint16] = _NO_LABELS,
    out_RP: NDArray[np.uint64] | None = None,
) -> NDArray[np.uint64]:
    """Return the planes of packed positions, uint64[R, 77], in `out_RP` if it is given.

    Raises StrangeRowError for a row that is no position, or where one of the labels, if there are any, is not legal.
    """
    planes_RP = np.empty((len(packed_RW), PLANES), dtype=np.uint64) if out_RP is None else out_RP
    row, why = unpack_positions(packed_RW, labels_R, np.zeros(WORDS, dtype=np.uint64), planes_RP)
    if row >= 0:
        raise StrangeRowError(int(row), int(why))
    return planes_RP


def positions_of(packed_RW: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return packed positions as engine.board.position has them, uint64[R, 16], their counters 0."""
    positions = np.zeros((len(packed_RW), WORDS), dtype=np.uint64)
    set_up_positions(packed_RW, positions)
    return positions


# ---------------------------------------------------------------- columns to rows


def packed_of(table: pa.Table) -> NDArray[np.uint64]:
    """Return the packed positions of a table that holds a compact shard's plane columns and COMPACT_BY.

    Raises ValueError for a piece code beyond 12.
    """
    out_RW = np.empty((len(table), PACKED), dtype=np.uint64)
    boards = tuple(array_numbers(whole_column(table.column(name))) for name in BOARD_COLUMNS)
    castling, ep_file = (array_numbers(whole_column(table.column(name))) for name in COMPACT_BY)
    array = whole_column(table.column(BLACK))
    bytes_of = np.frombuffer(array.buffers()[1], dtype=np.uint8) if len(array) else np.empty(0, dtype=np.uint8)
    black = np.unpackbits(bytes_of, bitorder="little")[array.offset : array.offset + len(array)]
    row = pack_columns(boards, black, castling, ep_file, out_RW)
    if row >= 0:
        raise ValueError(f"planes: row {row} of a row group has a piece code that does not exist")
    return out_RW


def needed_columns(form: Stored) -> list[str]:
    """Return the columns that planes are made of."""
    return [field.name for field in plane_fields(form)] + (list(COMPACT_BY) if form == "compact" else [])


def planes_of(table: pa.Table, out_RP: NDArray[np.uint64] | None = None) -> NDArray[np.uint64]:
    """Return the planes, uint64[R, 77], of a table that holds the columns of `needed_columns`; in `out_RP` if it is given."""
    form = form_of(table.schema.names)
    if form == "bytes" and out_RP is None:
        return _words(whole_column(table.column("planes")), PLANES)
    planes = np.empty((len(table), PLANES), dtype=np.uint64) if out_RP is None else out_RP
    if form == "bytes":
        planes[:] = _words(whole_column(table.column("planes")), PLANES)
    elif form == "compact":
        unpacked(packed_of(table), out_RP=planes)
    else:
        pieces_CR = np.empty((len(PIECE_COLUMNS), len(table)), dtype=np.uint64)
        for plane, name in enumerate(PIECE_COLUMNS):
            pieces_CR[plane] = array_numbers(whole_column(table.column(name)))
        groups = tuple(_words(whole_column(table.column(name)), words) for name, words in MOVE_COLUMNS.items())
        join_planes(pieces_CR, groups, planes)
    return planes


def read_stored(
    file: pq.ParquetFile, path: Path, group: int, columns: list[str], planes_RP: NDArray[np.uint64] | None = None
) -> tuple[pa.Table, NDArray[np.uint64]]:
    """Read a row group of a shard: a table of the columns, those of planes among them where they are needed, and the planes.

    The planes are written to `planes_RP` where it is given. Raises ValueError, OSError or ArrowException for a damaged file.
    """
    form = form_of(file.metadata.schema.names)
    rows = file.metadata.row_group(group).num_rows
    planes = np.empty((rows, PLANES), dtype=np.uint64) if planes_RP is None else planes_RP
    if form == "bytes":
        table = file.read_row_group(group, columns=columns, use_threads=False)
        read_byte_split(file, path, group, planes)
        return table, planes
    wanted = list(dict.fromkeys([*columns, *needed_columns(form)]))
    table = file.read_row_group(group, columns=wanted, use_threads=False)
    return table, planes_of(table, planes)
