"""A chunk's rows by buckets, in a file that lies in `.building/` until shards are made of it (pipeline/ingest/scatter.py).

    a zstd frame a bucket: records, then packed positions | bytes of each frame, uint32[B] | rows of each, uint32[B]

A frame carries a checksum. The columns of a record are those of a batch
(`pipeline.dataset.files.shards.batch_columns`), with the positions apart (`pipeline.dataset.files.stored_planes`).

Axes: R rows, W words of a packed position, B buckets.
"""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import zstandard
from numpy.typing import NDArray

from engine.encoding.views import LAST_MOVES
from pipeline.dataset.files.columns import PLANE_COLUMNS, columns_of
from pipeline.dataset.files.plane_kernels import PACKED
from pipeline.storage.stores import read_span

BUCKETS_PER_MIB = 64
"""Buckets for each MiB of a chunk's text: some 400 rows of train a bucket and chunk, whatever its size."""
LEVEL = 1
"""zstd's level: 37 bytes a row where -1 gives 48, and 3 the same."""


def bucket_count(chunk_mib: int, share: float) -> int:
    """Count the buckets of a split that holds this share of the rows."""
    return max(1, round(BUCKETS_PER_MIB * chunk_mib * share))


def drawn(
    picked_R: NDArray[np.int64], buckets: int, seed: tuple[int, ...]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Draw a bucket for each row: give the rows, bucket after bucket, and how many each has, int64[B]."""
    bucket_R = np.random.Generator(np.random.PCG64(seed)).integers(0, buckets, len(picked_R), dtype=np.uint16)
    return picked_R[np.argsort(bucket_R, kind="stable")], np.bincount(bucket_R, minlength=buckets)


@cache
def record_type(history: int) -> np.dtype[Any]:
    """Give the record of a row: every column of a human game but the planes, with `history` half-moves before it."""
    left_out = ("visits", "root_value")
    named = columns_of("all", LAST_MOVES[:history])[len(PLANE_COLUMNS["all"]) :]
    kinds = {column.name: column.type for column in named if column.name not in left_out}
    return np.dtype([(name, kind.to_pandas_dtype()) for name, kind in kinds.items()])


def write_buckets(
    columns: Mapping[str, NDArray[Any]],
    packed_RW: NDArray[np.uint64],
    rows_B: NDArray[np.int64],
    history: int,
    target: Any,
) -> None:
    """Write rows that stand bucket after bucket."""
    records_R = np.empty(len(packed_RW), dtype=record_type(history))
    for name in records_R.dtype.names or ():
        records_R[name] = columns[name]
    packer = zstandard.ZstdCompressor(level=LEVEL, write_checksum=True)
    lengths_B = np.zeros(len(rows_B), dtype="<u4")
    first = 0
    for bucket, rows in enumerate(rows_B.tolist()):
        last = first + rows
        if rows:
            frame = packer.compress(records_R[first:last].tobytes() + packed_RW[first:last].tobytes())
            lengths_B[bucket] = target.write(frame)
        first = last
    target.write(lengths_B.tobytes() + rows_B.astype("<u4").tobytes())


def read_index(path: Path, buckets: int) -> NDArray[np.uint32]:
    """Read the bytes and rows of each bucket of a file, uint32[2, B]; raises ValueError for a file that is none."""
    size, tail_bytes = path.stat().st_size, 8 * buckets
    tail = np.frombuffer(read_span(path, max(size - tail_bytes, 0), size)[: size // 4 * 4], dtype="<u4")
    if len(tail) != 2 * buckets or int(tail[:buckets].sum(dtype=np.int64)) != size - tail_bytes:
        raise ValueError(f"{path} is damaged")
    return tail.reshape(2, buckets)


def unpacked(frame: bytes, rows: int, history: int) -> tuple[NDArray[Any], NDArray[np.uint64]]:
    """Return the rows of a bucket: records [R], packed positions uint64[R, W]; ZstdError or ValueError for a damaged one."""
    kind = record_type(history)
    size = rows * (kind.itemsize + 8 * PACKED)
    data = zstandard.ZstdDecompressor().decompress(frame)
    if len(data) != size:
        raise ValueError(f"{len(data)} bytes, and {rows} rows take {size}")
    packed = np.frombuffer(data, dtype="<u8", offset=rows * kind.itemsize)
    return np.frombuffer(data, dtype=kind, count=rows), packed.reshape(rows, PACKED)
