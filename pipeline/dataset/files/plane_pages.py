"""The planes of a row group of format version 2, read page by page, their bytes brought together eight rows at a time.

A shard's planes are Parquet's BYTE_STREAM_SPLIT, 616 streams a page: byte b of all of a page's rows, then byte b + 1 of all of
them. Arrow's decoder goes a byte at a time for values this wide, and was half of what a row cost to read (docs/log.md). zstd
and the file's footer stay pyarrow's. Source: parquet-format's Encodings.md and parquet.thrift; Thrift's compact protocol.

Axes: R rows, P planes.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from engine.encoding.planes import PLANE_BYTES, PLANES
from pipeline.dataset.files.plane_kernels import ROWS_OF_WORD, join_streams

DEEPEST = 8
"""Structs in structs of a page's header; Parquet has two."""


def _join_page(page: NDArray[np.uint8], out_RP: NDArray[np.uint64]) -> None:
    """Bring the bytes of a page, uint8[616 * R], together as rows."""
    streams = page.reshape(PLANE_BYTES, len(out_RP))
    if len(out_RP) % ROWS_OF_WORD:  # the last page of a file
        out_RP[:] = np.ascontiguousarray(streams.T).view("<u8")
    else:
        join_streams(streams.view("<u8"), out_RP)


_INTEGERS, _BINARY, _STRUCT = (4, 5, 6), 8, 12
_SIZES = {1: 0, 2: 0, 3: 1, 7: 8}
"""Types of fields in Thrift's compact protocol, and the bytes of those that say nothing here: true, false, byte, double."""


class _Header:
    """A page's header: the fields of a Thrift struct in the compact protocol."""

    def __init__(self, data: bytes, at: int) -> None:
        """Read the struct at `at`; raises ValueError for bytes that are none (IndexError where they end)."""
        self.data, self.at, self.depth = data, at, 0
        self.fields = self._struct()

    def _varint(self) -> int:
        value = shift = 0
        while True:
            byte = self.data[self.at]
            self.at += 1
            value |= (byte & 127) << shift
            if byte < 128:
                return value
            shift += 7
            if shift > 63:
                raise ValueError("a number of more than 64 bits")

    def _integer(self) -> int:
        value = self._varint()
        return (value >> 1) ^ -(value & 1)

    def _value(self, kind: int) -> Any:
        if kind in _INTEGERS:
            return self._integer()
        if kind == _STRUCT:
            return self._struct()
        if kind == _BINARY:
            size = self._varint()
            self.at += size
        elif kind in _SIZES:
            self.at += _SIZES[kind]
        else:
            raise ValueError(f"a field of the unknown type {kind}")
        return None

    def _struct(self) -> dict[int, Any]:
        self.depth += 1
        if self.depth > DEEPEST:
            raise ValueError("structs nested too deep")
        fields: dict[int, Any] = {}
        number = 0
        while head := self.data[self.at]:
            self.at += 1
            number = number + (head >> 4) if head >> 4 else self._integer()
            fields[number] = self._value(head & 15)
        self.at += 1
        self.depth -= 1
        return fields


_DATA_PAGE, _BYTE_STREAM_SPLIT = 0, 9
"""Of parquet.thrift's PageType and Encoding."""


def _split(file: pq.ParquetFile, column: pq.ColumnChunkMetaData) -> bool:
    """Tell whether a column is as format version 2 writes planes: split by bytes, zstd, no
    nulls or dictionary.
    """
    return bool(
        column.path_in_schema == "planes"
        and column.compression == "ZSTD"
        and "BYTE_STREAM_SPLIT" in column.encodings
        and not column.has_dictionary_page
        and file.schema.column(0).max_definition_level == 0
    )


def _pages(data: bytes, rows: int) -> Iterator[tuple[int, int, pa.Buffer]]:
    """Give each page of a column as the number of its first row, its rows, and its bytes.

    Raises ValueError for pages that do not come to `rows` of planes.
    """
    codec = pa.Codec("zstd")
    whole = memoryview(data)
    first = at = 0
    while first < rows:
        header = _Header(data, at)
        kind, unpacked, packed, page = (header.fields.get(number) for number in (1, 2, 3, 5))
        if kind != _DATA_PAGE or not isinstance(page, dict) or page.get(2) != _BYTE_STREAM_SPLIT:
            raise ValueError(f"the page before byte {header.at} of the column holds no planes")
        count = page.get(1)
        if not isinstance(count, int) or not 0 < count <= rows - first or unpacked != count * PLANE_BYTES:
            raise ValueError(f"the page at byte {header.at} of the column has {count} rows in {unpacked} bytes")
        if not isinstance(packed, int) or not 0 < packed <= len(data) - header.at:
            raise ValueError(f"the page at byte {header.at} of the column is cut off")
        at = header.at + packed
        yield first, count, codec.decompress(whole[header.at : at], unpacked)
        first += count


def _join_pages(path: Path, column: Any, out_RP: NDArray[np.uint64]) -> None:
    """Read planes that are split by bytes."""
    with cast("BinaryIO", path.open("rb")) as file:
        file.seek(column.data_page_offset)
        data = file.read(column.total_compressed_size)
    try:
        for first, count, page in _pages(data, len(out_RP)):
            _join_page(np.frombuffer(page, dtype=np.uint8), out_RP[first : first + count])
    except IndexError as error:
        raise ValueError("a page ends within its header") from error


def read_planes(file: pq.ParquetFile, path: Path, group: int, out_RP: NDArray[np.uint64]) -> None:
    """Read the planes of a shard's row group into `out_RP`, uint64[R, 77] with as many rows as the group.

    `file` is the shard, opened, and `path` where it lies. Planes that were written another way are read by pyarrow.
    Raises ValueError, OSError or ArrowException for a damaged file.
    """
    column = file.metadata.row_group(group).column(0)
    if len(out_RP) != column.num_values:
        raise ValueError(f"{column.num_values} rows of planes, not {len(out_RP)}")
    if _split(file, column):
        _join_pages(path, column, out_RP)
    else:
        column = file.read_row_group(group, columns=["planes"], use_threads=False).column(0).combine_chunks()
        first, last = 8 * PLANES * column.offset, 8 * PLANES * (column.offset + len(column))
        out_RP[:] = np.frombuffer(column.buffers()[1], dtype="<u8", count=last // 8)[first // 8 :].reshape(-1, PLANES)
