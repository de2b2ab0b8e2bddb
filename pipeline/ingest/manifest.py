"""The manifest of an ingest: the notes of all chunks added up, and the table of all games.

Copies of positions, and what test shares with train, are no sum over chunks: `fianchetto audit` counts them.
"""

import itertools
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from engine.encoding.planes import ENCODING_VERSION, moves_hash
from pipeline.dataset.files import shards as shard_format
from pipeline.dataset.files.columns import FORMAT_VERSION
from pipeline.dataset.files.shards import (
    GAMES,
    SPLITS,
    publish,
    publish_dataset,
    read_note,
)
from pipeline.dumps.reader import Source
from pipeline.errors import DatasetError
from pipeline.ingest.chunk import OTHERS, IngestConfig, config_digest, part_name
from pipeline.ingest.data_card import write_card
from pipeline.ingest.row_filters import REASONS
from pipeline.ingest.rows_code import rows_code
from pipeline.pgn import replay
from pipeline.storage.building import PARTS, files_folder
from pipeline.storage.stores import opened

READERS = 8
"""Notes that are read at a time: each is a request where they lie in a store."""


def read_notes(parts: Path) -> list[dict[str, Any]]:
    """Return the notes of all chunks in order, listed once and read concurrently; raises DatasetError."""
    there = {path.name for path in parts.iterdir()} if parts.exists() else set()
    names = itertools.takewhile(there.__contains__, map(part_name, itertools.count()))
    with ThreadPoolExecutor(READERS) as pool:
        return list(pool.map(read_note, [parts / name for name in names]))


def _table(path: Path) -> pa.Table:
    """Read a small table; not by `pq.read_table`, which imports pandas where it is installed, a quarter of a second."""
    with pq.ParquetFile(opened(path)) as file:
        return file.read(use_threads=False)


def _merge_games(out: Path, count: int) -> dict[str, Any]:
    """Publish `games.parquet` from the chunks' tables, one row group each, with dictionaries made one."""
    paths = [out / PARTS / f"games-{index:05d}.parquet" for index in range(count)]
    kinds: dict[str, pa.DataType] = {}  # puzzles have two more
    rows = 0
    for path in paths:
        with pq.ParquetFile(opened(path)) as file:
            kinds |= {field.name: field.type for field in file.schema_arrow}
            rows += file.metadata.num_rows
    plain = pa.schema(
        [pa.field(name, kind.value_type if pa.types.is_dictionary(kind) else kind) for name, kind in kinds.items()]
    )

    def write(target: Any) -> None:
        with pq.ParquetWriter(target, plain, compression="zstd") as writer:
            for path in paths:
                table = _table(path)
                for field in plain:
                    if field.name not in table.schema.names:
                        table = table.append_column(field, pa.nulls(len(table), field.type))
                writer.write_table(table.select(plain.names).cast(plain))

    done = publish(files_folder(out), GAMES, rows, write)
    return {"name": GAMES, "split": None, "rows": done.rows, "bytes": done.bytes, "sha256": done.sha256}


def plain_config(config: IngestConfig) -> dict[str, Any]:
    """Give a configuration as JSON has it, where a tuple is a list."""
    plain: dict[str, Any] = json.loads(json.dumps(asdict(config)))
    return plain


def build_manifest(
    out: Path,
    sources: Sequence[Source],
    config: IngestConfig,
    more: Mapping[str, Any] | None = None,
    shards: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """Publish `games.parquet` and then the manifest, and give it; raises DatasetError when there is no position.

    `more` is what the manifest says besides, or otherwise; `shards` are those that are not of one chunk.
    """
    notes = read_notes(out / PARTS)
    code = rows_code()
    made_with = {(note["config"], note["code"]) for note in notes if "config" in note}  # self-play has one writer
    if made_with - {(config_digest(config), code)}:
        raise DatasetError(OTHERS.format(out=out))
    status: Counter[str] = Counter()
    rows_dropped: Counter[str] = Counter()
    for note in notes:
        status.update(note["status"])
        rows_dropped.update(note["rows_dropped"])
    read = sum(note["games"] for note in notes)
    rows = sum(note["rows"] for note in notes)
    dropped = {name: status[name] for name in replay.STATUS[1:] if status[name]}
    if not rows:
        named = ", ".join(source.name for source in sources)
        damage = "; ".join(source.damage for source in sources if source.damage)
        reasons = "; ".join(f"{name}: {count}" for name, count in (*dropped.items(), *rows_dropped.items()))
        counts = reasons or damage or "no game was found"
        raise DatasetError(f"no positions in {named}: {read} games read ({counts})")
    files = [*(entry for note in notes for entry in note["files"]), *shards]
    positions = {split: sum(entry["rows"] for entry in files if entry["split"] == split) for split in SPLITS}
    if sum(positions.values()) != rows:
        raise DatasetError(
            f"{out} has shards of {sum(positions.values())} rows, not {rows}: delete it and ingest again"
        )
    shard_bytes = sum(entry["bytes"] for entry in files)
    with ThreadPoolExecutor(1) as beside:
        beside.submit(import_module, "polars")  # which the card is made by, and takes as long to import as all it makes
        files.append(_merge_games(out, len(notes)))
    manifest = {
        "format_version": FORMAT_VERSION,
        "encoding_version": ENCODING_VERSION,
        "moves_hash": moves_hash(),
        "planes": config.planes,
        "row_group": shard_format.ROW_GROUP,
        "code": code,
        "sources": [source.describe() for source in sources],
        "config": plain_config(config),
        "games": {"read": read, "used": status["used"], "dropped": dropped},
        "positions": {"total": rows, **positions},
        "positions_dropped": {name: rows_dropped[name] for name in REASONS if rows_dropped[name]},
        "bytes_per_position": round(shard_bytes / rows, 2),
        "label_collisions": sum(note["label_collisions"] for note in notes),
        **(more or {}),
        "files": files,
    }
    write_card(files_folder(out), manifest)
    publish_dataset(out, manifest)
    return manifest
