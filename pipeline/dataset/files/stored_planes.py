"""Convert between planes and the columns of a shard that store them.

form      columns                                                                 bytes compressed
all       twelve bitboards and the turn, a uint64 each; move planes as binary     48 a row
compact   four bits of each square's piece code as four uint64; the turn          16 a row

The form `all` contains all 77 planes, for any reader. For the form `compact`, this module computes
them.

A packed position (uint64[R, PACKED_WORDS]) is the same data as a row of a compact shard; the planes
are computed from it.

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
    BLACK,
    BOARD_COLUMNS,
    MOVE_COLUMNS,
    PIECE_COLUMNS,
    PlaneFormat,
    find_plane_format,
)
from pipeline.dataset.files.kernels import (
    ILLEGAL_LABEL,
    MANY_MOVES,
    NO_KINGS,
    PACKED_PIECE_WORDS,
    PACKED_WORDS,
    PIECES,
    WIDTHS,
    join_planes,
    pack_columns,
    pack_positions,
    split_positions,
    unpack_positions,
    unpack_to_positions,
)

PACKED_WITH = ("castling", "ep_file")
"""Additional columns that a packed position needs."""
assert len(PIECE_COLUMNS) == PIECES
assert tuple(MOVE_COLUMNS.values()) == WIDTHS

# ---------------------------------------------------------------- arrays


def number_array(values: NDArray[Any], known: NDArray[np.bool_] | None = None) -> pa.Array:
    """Wrap numbers in an Arrow array without copying; values that are not `known` are null.

    `pa.array`, `to_numpy` and `pq.read_table` would import pandas on the first call, which is a
    third of a worker's start-up time.
    """
    values = np.ascontiguousarray(values)
    valid = None
    if known is not None and not known.all():
        valid = pa.py_buffer(np.packbits(known, bitorder="little"))
    kind = pa.from_numpy_dtype(values.dtype)
    return pa.Array.from_buffers(kind, len(values), [valid, pa.py_buffer(values)])


def array_numbers(array: pa.Array) -> NDArray[Any]:
    """Return an Arrow array of non-null numbers as numpy, without copying."""
    kind, end = array.type.to_pandas_dtype(), array.offset + len(array)
    if not len(array):
        return np.empty(0, dtype=kind)
    return np.frombuffer(array.buffers()[1], dtype=kind, count=end)[array.offset :]


def whole_column(column: pa.ChunkedArray) -> pa.Array:
    """Return a column as one array; a single chunk is not copied."""
    pieces = column.chunks
    if len(pieces) == 1:
        return pieces[0]
    return pa.concat_arrays(pieces) if pieces else pa.nulls(0, column.type)


def _binary_words(array: pa.Array, words: int) -> NDArray[np.uint64]:
    """Return the words of a binary column, uint64[R * words], without copying."""
    if not len(array):
        return np.empty(0, dtype=np.uint64)
    first, end = words * array.offset, words * (array.offset + len(array))
    return np.frombuffer(array.buffers()[1], dtype="<u8", count=end)[first:]


# ---------------------------------------------------------------- planes to columns


def plane_arrays(packed_RW: NDArray[np.uint64], form: PlaneFormat) -> list[pa.Array]:
    """Return the columns PLANE_COLUMNS[form] for packed positions."""
    rows = len(packed_RW)
    if form == "all":
        pieces_CR = np.empty((len(PIECE_COLUMNS), rows), dtype=np.uint64)
        groups = tuple(np.empty(rows * words, dtype="<u8") for words in MOVE_COLUMNS.values())
        split_positions(np.ascontiguousarray(packed_RW), pieces_CR, groups)
        kinds = (pa.binary(8 * words) for words in MOVE_COLUMNS.values())
        return [
            *map(number_array, pieces_CR),
            *(
                pa.FixedSizeBinaryArray.from_buffers(kind, rows, [None, pa.py_buffer(words)])
                for kind, words in zip(kinds, groups, strict=True)
            ),
        ]
    black_R = (packed_RW[:, PACKED_PIECE_WORDS] & np.uint64(1)).astype(np.bool_)
    black = pa.py_buffer(np.packbits(black_R, bitorder="little"))
    boards = [number_array(packed_RW[:, board]) for board in range(PACKED_PIECE_WORDS)]
    return [*boards, pa.BooleanArray.from_buffers(pa.bool_(), rows, [None, black])]


# ---------------------------------------------------------------- packed positions


def pack(planes_RP: NDArray[np.uint64], columns: Mapping[str, NDArray[Any]]) -> NDArray[np.uint64]:
    """Pack planes; `columns` holds PACKED_WITH."""
    out_RW = np.empty((len(planes_RP), PACKED_WORDS), dtype=np.uint64)
    planes_RP = np.ascontiguousarray(planes_RP, dtype=np.uint64)
    castling_R, ep_file_R = (columns[name].astype(np.uint8, copy=False) for name in PACKED_WITH)
    pack_positions(planes_RP, castling_R, ep_file_R, out_RW)
    return out_RW


_NO_LABELS = np.empty(0, dtype=np.uint16)
_REASONS = {
    NO_KINGS: "planes: not a position: each side must have one king",
    MANY_MOVES: f"planes: not a position: it has more than {MAX_MOVES} legal moves",
    ILLEGAL_LABEL: "its label is not a legal move",
}


class InvalidRowError(ValueError):
    """The position or the label of a row is invalid."""

    def __init__(self, row: int, why: int) -> None:
        super().__init__(f"{_REASONS[why]}, in row {row} of a row group")
        self.row, self.why = row, _REASONS[why]


def unpack(
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
    """Unpack to positions (engine/board/position.py), uint64[R, 16], with counters 0."""
    positions = np.zeros((len(packed_RW), WORDS), dtype=np.uint64)
    unpack_to_positions(packed_RW, positions)
    return positions


def row_positions(batch: Mapping[str, NDArray[Any]]) -> NDArray[np.uint64]:
    """Return rows as positions for a search or a board, uint64[R, 16].

    Reads the columns `planes castling ep_file halfmove ply`. Earlier positions of the game are not
    stored, so a search from a row only detects repetitions within its own tree.
    """
    positions_RW = to_positions(pack(batch["planes"], batch))
    halfmove, ply = batch["halfmove"].astype(np.uint64), batch["ply"].astype(np.uint64)
    positions_RW[:, COUNTERS] = halfmove | ply << np.uint64(16)
    return positions_RW


# ---------------------------------------------------------------- columns to planes


def packed_from(table: pa.Table) -> NDArray[np.uint64]:
    """Return the packed positions of a compact shard's plane columns and PACKED_WITH.

    Raises ValueError for an unknown piece code.
    """
    out_RW = np.empty((len(table), PACKED_WORDS), dtype=np.uint64)
    names = (*BOARD_COLUMNS, *PACKED_WITH)
    *boards, castling, ep_file = (array_numbers(whole_column(table.column(it))) for it in names)
    array = whole_column(table.column(BLACK))
    bits = np.frombuffer(array.buffers()[1] if len(array) else b"", dtype=np.uint8)
    black = np.unpackbits(bits, bitorder="little")[array.offset : array.offset + len(array)]
    row = pack_columns(tuple(boards), black, castling, ep_file, out_RW)
    if row >= 0:
        raise ValueError(f"planes: row {row} of a row group has a piece code that does not exist")
    return out_RW


def planes_from(table: pa.Table, out_RP: NDArray[np.uint64] | None = None) -> NDArray[np.uint64]:
    """Return the planes of a table of either form, uint64[R, 77], in `out_RP` if given."""
    planes_RP = np.empty((len(table), PLANES), dtype=np.uint64) if out_RP is None else out_RP
    if find_plane_format(table.schema.names) == "compact":
        return unpack(packed_from(table), out_RP=planes_RP)
    pieces_CR = np.empty((len(PIECE_COLUMNS), len(table)), dtype=np.uint64)
    for plane, name in enumerate(PIECE_COLUMNS):
        pieces_CR[plane] = array_numbers(whole_column(table.column(name)))
    groups = tuple(
        _binary_words(whole_column(table.column(name)), words)
        for name, words in MOVE_COLUMNS.items()
    )
    join_planes(pieces_CR, groups, planes_RP)
    return planes_RP
