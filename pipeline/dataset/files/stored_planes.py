"""Convert between planes and the columns of a shard that store them.

format    columns                                                                 bytes compressed
all       twelve bitboards and the turn, a uint64 each; move planes as binary     48 a row
compact   four bits of each square's piece code as four uint64; the turn          16 a row

Shards of the format `all` contain all 77 planes, for any reader. For shards of the format `compact`
this module computes the planes.

A packed position (uint64[R, PACKED_WORDS]) has the same content as a row of a compact shard.

Axes: R rows, P planes, W words of a packed position, C columns.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from engine.board.position import COUNTERS, MAX_MOVES, WORDS
from engine.encoding.planes import PLANES
from pipeline.dataset.files.columns import (
    BLACK_COLUMN,
    BOARD_COLUMNS,
    MOVE_COLUMNS,
    PIECE_COLUMNS,
    PlaneFormat,
    find_plane_format,
)
from pipeline.dataset.files.kernels import (
    ILLEGAL_LABEL,
    MANY_MOVES,
    MOVE_COLUMN_WIDTHS,
    NO_KINGS,
    PACKED_PIECE_WORDS,
    PACKED_WORDS,
    SINGLE_PLANES,
    join_planes,
    pack_columns,
    pack_positions,
    split_positions,
    unpack_positions,
    unpack_to_positions,
)

PACKED_STATE_COLUMNS = ("castling", "ep_file")
"""Columns of a shard that a packed position contains besides the planes."""
assert len(PIECE_COLUMNS) == SINGLE_PLANES
assert tuple(MOVE_COLUMNS.values()) == MOVE_COLUMN_WIDTHS

# ---------------------------------------------------------------- arrays of Arrow and numpy


def to_arrow(values: NDArray[Any], known: NDArray[np.bool_] | None = None) -> pa.Array:
    """Wrap numbers in an Arrow array; values where `known` is False become null.

    Contiguous numbers are not copied. pyarrow's `array`, `to_numpy` and `read_table` would import
    pandas on their first call, which takes a third of a worker's start-up time.
    """
    values = np.ascontiguousarray(values)
    valid = None
    if known is not None and not known.all():
        valid = pa.py_buffer(np.packbits(known, bitorder="little"))
    kind = pa.from_numpy_dtype(values.dtype)
    return pa.Array.from_buffers(kind, len(values), [valid, pa.py_buffer(values)])


def to_numpy(array: pa.Array) -> NDArray[Any]:
    """View an Arrow array of numbers without nulls as a numpy array, without copying."""
    kind, end = array.type.to_pandas_dtype(), array.offset + len(array)
    if not len(array):
        return np.empty(0, dtype=kind)
    return np.frombuffer(array.buffers()[1], dtype=kind, count=end)[array.offset :]


def combine_chunks(column: pa.ChunkedArray) -> pa.Array:
    """Return a column as one array; a single chunk is not copied."""
    chunks = column.chunks
    if len(chunks) == 1:
        return chunks[0]
    return pa.concat_arrays(chunks) if chunks else pa.nulls(0, column.type)


def _binary_to_words(array: pa.Array, words: int) -> NDArray[np.uint64]:
    """View a binary column of `words` words per row as uint64[R * words], without copying."""
    if not len(array):
        return np.empty(0, dtype=np.uint64)
    first, end = words * array.offset, words * (array.offset + len(array))
    return np.frombuffer(array.buffers()[1], dtype="<u8", count=end)[first:]


# ---------------------------------------------------------------- planes to columns


def make_plane_arrays(packed_RW: NDArray[np.uint64], plane_format: PlaneFormat) -> list[pa.Array]:
    """Return the columns PLANE_COLUMNS[plane_format] of packed positions."""
    rows = len(packed_RW)
    if plane_format == "all":
        pieces_CR = np.empty((len(PIECE_COLUMNS), rows), dtype=np.uint64)
        groups = tuple(np.empty(rows * words, dtype="<u8") for words in MOVE_COLUMNS.values())
        split_positions(np.ascontiguousarray(packed_RW), pieces_CR, groups)
        kinds = (pa.binary(8 * words) for words in MOVE_COLUMNS.values())
        return [
            *map(to_arrow, pieces_CR),
            *(
                pa.FixedSizeBinaryArray.from_buffers(kind, rows, [None, pa.py_buffer(words)])
                for kind, words in zip(kinds, groups, strict=True)
            ),
        ]
    black_R = (packed_RW[:, PACKED_PIECE_WORDS] & np.uint64(1)).astype(np.bool_)
    black = pa.py_buffer(np.packbits(black_R, bitorder="little"))
    boards = [to_arrow(packed_RW[:, board]) for board in range(PACKED_PIECE_WORDS)]
    return [*boards, pa.BooleanArray.from_buffers(pa.bool_(), rows, [None, black])]


# ---------------------------------------------------------------- packed positions


def pack_planes(
    planes_RP: NDArray[np.uint64], columns: Mapping[str, NDArray[Any]]
) -> NDArray[np.uint64]:
    """Pack planes, and PACKED_STATE_COLUMNS from `columns`, to uint64[R, PACKED_WORDS]."""
    out_RW = np.empty((len(planes_RP), PACKED_WORDS), dtype=np.uint64)
    planes_RP = np.ascontiguousarray(planes_RP, dtype=np.uint64)
    castling_R, ep_file_R = (
        columns[name].astype(np.uint8, copy=False) for name in PACKED_STATE_COLUMNS
    )
    pack_positions(planes_RP, castling_R, ep_file_R, out_RW)
    return out_RW


_NO_LABELS = np.empty(0, dtype=np.uint16)
_INVALID_ROW_REASONS = {
    NO_KINGS: "planes: not a position: each side must have one king",
    MANY_MOVES: f"planes: not a position: it has more than {MAX_MOVES} legal moves",
    ILLEGAL_LABEL: "its label is not a legal move",
}


class InvalidRowError(ValueError):
    """Raised for a row with an invalid position or an illegal label."""

    def __init__(self, row: int, why: int) -> None:
        super().__init__(f"{_INVALID_ROW_REASONS[why]}, in row {row} of a row group")
        self.row, self.why = row, _INVALID_ROW_REASONS[why]


def unpack_planes(
    packed_RW: NDArray[np.uint64],
    labels_R: NDArray[np.uint16] = _NO_LABELS,
    out_RP: NDArray[np.uint64] | None = None,
) -> NDArray[np.uint64]:
    """Return the planes of packed positions, uint64[R, 77], in `out_RP` if it is given.

    Raises InvalidRowError for an invalid position or an illegal label.
    """
    planes_RP = np.empty((len(packed_RW), PLANES), dtype=np.uint64) if out_RP is None else out_RP
    row, why = unpack_positions(packed_RW, labels_R, np.zeros(WORDS, dtype=np.uint64), planes_RP)
    if row >= 0:
        raise InvalidRowError(int(row), int(why))
    return planes_RP


def to_positions(packed_RW: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Unpack to positions (engine/board/position.py), uint64[R, 16], with all counters 0."""
    positions = np.zeros((len(packed_RW), WORDS), dtype=np.uint64)
    unpack_to_positions(packed_RW, positions)
    return positions


def rows_to_positions(batch: Mapping[str, NDArray[Any]]) -> NDArray[np.uint64]:
    """Convert rows to positions for a search or a board, uint64[R, 16].

    Reads the columns `planes castling ep_file halfmove ply`. Earlier positions of the game are not
    stored, so a search from a row only detects repetitions within its own tree.
    """
    positions_RW = to_positions(pack_planes(batch["planes"], batch))
    halfmove, ply = batch["halfmove"].astype(np.uint64), batch["ply"].astype(np.uint64)
    positions_RW[:, COUNTERS] = halfmove | ply << np.uint64(16)
    return positions_RW


# ---------------------------------------------------------------- columns to planes


def read_packed_positions(table: pa.Table) -> NDArray[np.uint64]:
    """Read packed positions from the table of a compact shard, uint64[R, PACKED_WORDS].

    Raises ValueError for an unknown piece code.
    """
    out_RW = np.empty((len(table), PACKED_WORDS), dtype=np.uint64)
    names = (*BOARD_COLUMNS, *PACKED_STATE_COLUMNS)
    *boards, castling_R, ep_file_R = (to_numpy(combine_chunks(table.column(it))) for it in names)
    turns = combine_chunks(table.column(BLACK_COLUMN))
    bits = np.frombuffer(turns.buffers()[1] if len(turns) else b"", dtype=np.uint8)
    black_R = np.unpackbits(bits, bitorder="little")[turns.offset : turns.offset + len(turns)]
    row = pack_columns(tuple(boards), black_R, castling_R, ep_file_R, out_RW)
    if row >= 0:
        raise ValueError(f"planes: row {row} of a row group has a piece code that does not exist")
    return out_RW


def read_planes(table: pa.Table, out_RP: NDArray[np.uint64] | None = None) -> NDArray[np.uint64]:
    """Read planes from a table of either format, uint64[R, 77], into `out_RP` if it is given."""
    planes_RP = np.empty((len(table), PLANES), dtype=np.uint64) if out_RP is None else out_RP
    if find_plane_format(table.schema.names) == "compact":
        return unpack_planes(read_packed_positions(table), out_RP=planes_RP)
    pieces_CR = np.empty((len(PIECE_COLUMNS), len(table)), dtype=np.uint64)
    for plane, name in enumerate(PIECE_COLUMNS):
        pieces_CR[plane] = to_numpy(combine_chunks(table.column(name)))
    groups = tuple(
        _binary_to_words(combine_chunks(table.column(name)), words)
        for name, words in MOVE_COLUMNS.items()
    )
    join_planes(pieces_CR, groups, planes_RP)
    return planes_RP
