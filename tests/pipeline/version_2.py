"""Datasets as format version 2 had them: the planes one column of 616 bytes, byte split, in pages of 512 rows."""

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.dataset.files.shards import EARLIER
from tests.pipeline.datasets import with_planes


def write(table: pa.Table, path: Path, row_group: int = 16_384) -> None:
    """Write a table whose first column is `planes` as version 2 did (its `write_rows`, 2026-11-22)."""
    pq.write_table(
        table, path, row_group_size=row_group, data_page_size=512 * 616, write_batch_size=512, compression="zstd",
        compression_level=1, use_dictionary=False,
        column_encoding={
            name: {"result": "DELTA_BINARY_PACKED"}.get(name, "BYTE_STREAM_SPLIT")
            for name in table.schema.names if name != "visits"
        },
        write_statistics=["label", "ply", "elo", "game"], store_schema=True,
    )  # fmt: skip


def as_version_2(dataset: Path, to: Path) -> Path:
    """Copy a dataset in the format of version 2: what it would have been before there was another."""
    shutil.copytree(dataset, to)
    manifest: dict[str, Any] = json.loads((to / "manifest.json").read_bytes())
    manifest["format_version"] = 2
    for name in ("planes", "row_group"):
        manifest.pop(name, None)
    for name in ("planes", "history"):
        manifest["config"].pop(name, None)
    for entry in manifest["files"]:
        path = to / entry["name"]
        if entry["split"]:
            table = pq.read_table(path).drop_columns(list(EARLIER))
            metadata = table.schema.metadata | {b"fianchetto_format": b"2"}
            whole = with_planes(table)
            fields = [pa.field(field.name, field.type, field.name in NULLABLE) for field in whole.schema]
            write(pa.Table.from_arrays(whole.columns, schema=pa.schema(fields, metadata)), path)
        data = path.read_bytes()
        entry |= {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    (to / "manifest.json").write_text(json.dumps(manifest))
    return to


NULLABLE = {"last_move", "eval", "clock", "elo", "opponent_elo", "base", "increment", "visits", "root_value"}
