"""Planes read page by page are what pyarrow's own decoder gives; a damaged page is said to be one."""

from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.encoding.planes import PLANE_BYTES, PLANES
from pipeline.dataset.files.plane_pages import _Header, read_planes
from tests.pipeline.version_2 import write

U64 = np.uint64


def planes_of(rows: int, seed: int = 0) -> Any:
    """Make random planes, uint64[rows, 77], all bits of use and every row another."""
    return np.random.default_rng(seed).integers(0, 2**64, (rows, PLANES), dtype=U64)


def shard(path: Path, planes: Any, row_group: int = 16_384) -> None:
    array = pa.FixedSizeBinaryArray.from_buffers(pa.binary(PLANE_BYTES), len(planes), [None, pa.py_buffer(planes)])
    schema = pa.schema([pa.field("planes", pa.binary(PLANE_BYTES), nullable=False)])
    write(pa.Table.from_arrays([array], schema=schema), path, row_group)


def planes_read(file: pq.ParquetFile, path: Path, group: int = 0) -> Any:
    """Read a group's planes page by page."""
    out = np.empty((file.metadata.row_group(group).num_rows, PLANES), dtype=U64)
    read_planes(file, path, group, out)
    return out


def by_pyarrow(file: pq.ParquetFile, group: int) -> Any:
    """Read a group's planes by pyarrow's decoder."""
    values = file.read_row_group(group, columns=["planes"])["planes"].to_pylist()
    return np.frombuffer(b"".join(values), "<u8").reshape(-1, PLANES)


@pytest.mark.parametrize("rows", [1, 7, 8, 63, 64, 65, 511, 512, 513, 520, 1000, 1024, 1025, 2056, 3000])
def test_pages_of_every_length_are_what_pyarrow_reads(tmp_path: Path, rows: int) -> None:
    planes, path = planes_of(rows), tmp_path / "train-00000-0.parquet"
    shard(path, planes, 2048)
    with pq.ParquetFile(path) as file:
        at = 0
        for group in range(file.num_row_groups):
            found = planes_read(file, path, group)
            count = len(found)
            assert np.array_equal(found, planes[at : at + count])
            assert np.array_equal(found, by_pyarrow(file, group))
            at += count
        assert at == rows


def test_nothing_is_written_beside_the_rows(tmp_path: Path) -> None:
    planes, path = planes_of(700), tmp_path / "train-00000-0.parquet"
    shard(path, planes)
    out = np.full((1000, PLANES), 3, dtype=U64)
    with pq.ParquetFile(path) as file:
        read_planes(file, path, 0, out[100:800])
    assert np.array_equal(out[100:800], planes)
    assert (out[:100] == 3).all()
    assert (out[800:] == 3).all()


@pytest.mark.parametrize(
    "options",
    [
        {"compression": "zstd", "use_dictionary": False},
        {"compression": "none", "use_dictionary": False, "column_encoding": {"planes": "BYTE_STREAM_SPLIT"}},
        {"compression": "zstd", "use_dictionary": True},
    ],
    ids=["plain", "not compressed", "dictionary"],
)
def test_planes_written_another_way_are_read_too(tmp_path: Path, options: dict[str, Any]) -> None:
    planes, path = planes_of(100), tmp_path / "other.parquet"
    array = pa.FixedSizeBinaryArray.from_buffers(pa.binary(PLANE_BYTES), 100, [None, pa.py_buffer(planes)])
    pq.write_table(pa.table({"planes": array}), path, **options)
    with pq.ParquetFile(path) as file:
        assert np.array_equal(planes_read(file, path), planes)


@pytest.mark.parametrize("nullable", [False, True])
def test_pages_with_a_checksum_and_statistics_are_read(tmp_path: Path, nullable: bool) -> None:
    planes, path = planes_of(1200), tmp_path / "checked.parquet"
    array = pa.FixedSizeBinaryArray.from_buffers(pa.binary(PLANE_BYTES), 1200, [None, pa.py_buffer(planes)])
    schema = pa.schema([pa.field("planes", pa.binary(PLANE_BYTES), nullable=nullable)])
    pq.write_table(
        pa.Table.from_arrays([array], schema=schema), path, compression="zstd", use_dictionary=False,
        write_batch_size=512, data_page_size=512 * PLANE_BYTES, column_encoding={"planes": "BYTE_STREAM_SPLIT"},
        write_statistics=True, write_page_checksum=True,
    )  # fmt: skip
    with pq.ParquetFile(path) as file:
        assert np.array_equal(planes_read(file, path), planes)


def test_a_damaged_byte_is_an_error_or_changes_only_planes(tmp_path: Path) -> None:
    """Flip bytes all over a column: an exception that callers name, never a crash, a hang or rows elsewhere."""
    path, broken = tmp_path / "train-00000-0.parquet", tmp_path / "broken.parquet"
    shard(path, np.tile(planes_of(8), (150, 1)))
    good = path.read_bytes()
    with pq.ParquetFile(path) as file:
        column = file.metadata.row_group(0).column(0)
    first, size = column.data_page_offset, column.total_compressed_size
    chance = np.random.default_rng(5)
    refused = 0
    for at in [*range(first, first + 40), *(first + chance.integers(0, size, 200)).tolist()]:
        bad = bytearray(good)
        bad[at] ^= int(chance.integers(1, 256))
        broken.write_bytes(bad)
        out = np.zeros((1201, PLANES), dtype=U64)
        with pq.ParquetFile(broken) as file:
            try:
                read_planes(file, broken, 0, out[:1200])
            except (ValueError, OSError, pa.ArrowException):
                refused += 1
        assert not out[1200].any()
    assert refused > 40, "headers and zstd's own marks are checked"


def test_a_file_that_is_cut_off_behind_its_footer_is_an_error(tmp_path: Path) -> None:
    planes, path = planes_of(600), tmp_path / "train-00000-0.parquet"
    shard(path, planes)
    out = np.zeros((600, PLANES), dtype=U64)
    with pq.ParquetFile(path) as file:
        path.with_name("short").write_bytes(path.read_bytes()[:2000])
        with pytest.raises(ValueError, match="cut off"):
            read_planes(file, path.with_name("short"), 0, out)
        path.with_name("empty").write_bytes(b"")
        with pytest.raises(ValueError, match="ends within its header"):
            read_planes(file, path.with_name("empty"), 0, out)
        with pytest.raises(ValueError, match="600 rows of planes, not 599"):
            read_planes(file, path, 0, out[1:])


@given(st.binary(max_size=200))
def test_any_bytes_as_a_header_are_fields_or_an_error(data: bytes) -> None:
    with suppress(ValueError, IndexError):
        assert isinstance(_Header(data, 0).fields, dict)


def test_a_header_of_structs_without_end_is_an_error() -> None:
    with pytest.raises(ValueError, match="nested"):
        _Header(b"\x1c" * 100_000, 0)
