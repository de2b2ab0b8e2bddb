"""Write the manifest of an ingest from the notes of its chunks, and the table of all games.

Duplicate positions and positions shared between splits are not sums over chunks: `fianchetto audit`
counts them.
"""

import itertools
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from engine.encoding.planes import ENCODING_VERSION, moves_hash
from pipeline.dataset.files.columns import (
    DATA_CARD_FILE,
    FORMAT_VERSION,
    GAMES,
    MANIFEST,
    ROW_GROUP,
    SPLITS,
)
from pipeline.dataset.files.manifest import read_chunk_note
from pipeline.dataset.files.verify_files import mark_files_verified
from pipeline.errors import DatasetError
from pipeline.ingest.chunk import (
    OTHER_MACHINE_ERROR,
    ROWS_VERSION,
    IngestConfig,
    config_digest,
    part_name,
)
from pipeline.ingest.data_card import GameCounts, data_card
from pipeline.ingest.examples import merge_examples
from pipeline.ingest.filters import GAME_STATUS, ROW_STATUS
from pipeline.ingest.games_table import write_options
from pipeline.storage.job_folder import JobFolder
from pipeline.storage.stores import open_for_arrow, publish, publish_json

READERS = 8
"""Number of notes read concurrently: in a store, each is a request."""


def read_notes(parts: Path) -> list[dict[str, Any]]:
    """Return the notes of all chunks in order, read concurrently; raises DatasetError."""
    there = {path.name for path in parts.iterdir()} if parts.exists() else set()
    names = itertools.takewhile(there.__contains__, map(part_name, itertools.count()))
    with ThreadPoolExecutor(READERS) as pool:
        return list(pool.map(read_chunk_note, [parts / name for name in names]))


def _merge_games(folder: JobFolder, count: int) -> tuple[dict[str, Any], GameCounts]:
    """Merge the chunks' tables into `games.parquet`; return its manifest entry and counts."""
    paths = [folder.notes / f"games-{index:05d}.parquet" for index in range(count)]
    kinds: dict[str, pa.DataType] = {}  # puzzles have two extra columns
    rows, counts = 0, GameCounts()
    for path in paths:
        with pq.ParquetFile(open_for_arrow(path)) as file:
            kinds |= dict(zip(file.schema_arrow.names, file.schema_arrow.types, strict=True))
            rows += file.metadata.num_rows
    merged = pa.schema(kinds)

    def write(target: Any) -> None:
        # without the stored Arrow schema, readers see text columns, not dictionaries
        options = write_options(merged) | {"store_schema": False}
        with pq.ParquetWriter(target, merged, **options) as writer:
            for path in paths:
                # `pq.read_table` would import pandas, which takes a quarter of a second
                with pq.ParquetFile(open_for_arrow(path)) as file:
                    table = file.read(use_threads=False)
                for field in merged:
                    if field.name not in table.schema.names:
                        table = table.append_column(field, pa.nulls(len(table), field.type))
                writer.write_table(table.select(merged.names))
                counts.add(table)

    return asdict(publish(folder.files, GAMES, rows, write)) | {"split": None}, counts


def _explain_no_positions(
    sources: Sequence[Mapping[str, Any]],
    config: IngestConfig,
    read: int,
    names: Counter[str],
    reasons: Mapping[str, int],
    examples: Mapping[str, Mapping[str, Any]],
) -> str:
    """Explain why no position was kept: an unknown player name, or the reasons for dropping."""
    del names[""]
    if config.player and names and not names.keys() & set(config.player):
        frequent = ", ".join(f"{name!r} ({games:,})" for name, games in names.most_common(5))
        return (
            f"none of the {read:,} games has a move by {' or '.join(map(repr, config.player))}: "
            f"names must match the tags exactly; the most frequent are {frequent}"
        )
    named = ", ".join(source["name"] for source in sources)
    damage = "; ".join(source["damage"] for source in sources if source["damage"])
    counts = "; ".join(f"{name}: {count}" for name, count in reasons.items())
    why = counts or damage or "no game was found"
    first = next(iter(examples.values()), None)
    shown = f"; the first is at {first['where']}: {first['text']}" if first else ""
    return f"no positions in {named}: {read} games read ({why}){shown}"


def plain_config(config: IngestConfig) -> dict[str, Any]:
    """Return a configuration as plain JSON values, with lists for tuples."""
    plain: dict[str, Any] = json.loads(json.dumps(asdict(config)))
    return plain


def build_manifest(
    folder: JobFolder,
    sources: Sequence[Mapping[str, Any]],
    config: IngestConfig,
    more: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Publish `games.parquet` and then the manifest with the extra fields `more`; return it.

    `sources` are the manifest entries of the dumps. Raises DatasetError if there are no positions.
    """
    notes = read_notes(folder.notes)
    # notes of self-play have no config
    made_by = {(note["config"], note["rows_version"]) for note in notes if "config" in note}
    if made_by - {(config_digest(config), ROWS_VERSION)}:
        raise DatasetError(OTHER_MACHINE_ERROR.format(out=folder.out))
    status, rows_dropped, names = (Counter[str]() for _ in range(3))
    for note in notes:
        status.update(note["status"])
        rows_dropped.update(note["rows_dropped"])
        names.update(note.get("names", {}))
    read, rows = (sum(note[field] for note in notes) for field in ("games", "rows"))
    dropped = {name: status[name] for name in GAME_STATUS[1:] if status[name]}
    examples = merge_examples(notes, sources)
    if not rows:
        reasons = dropped | dict(rows_dropped)
        raise DatasetError(_explain_no_positions(sources, config, read, names, reasons, examples))
    files = [entry for note in notes for entry in note["files"]]
    positions = {
        split: sum(entry["rows"] for entry in files if entry["split"] == split) for split in SPLITS
    }
    shard_bytes = sum(entry["bytes"] for entry in files)
    table, game_counts = _merge_games(folder, len(notes))
    manifest = {
        "format_version": FORMAT_VERSION,
        "encoding_version": ENCODING_VERSION,
        "moves_hash": moves_hash(),
        "planes": config.planes,
        "row_group": ROW_GROUP,
        "rows_version": ROWS_VERSION,
        "sources": list(sources),
        "config": plain_config(config),
        "games": {"read": read, "used": status["used"], "dropped": dropped},
        "examples": examples,
        "positions": {"total": rows, **positions},
        "positions_dropped": {
            name: rows_dropped[name] for name in ROW_STATUS if rows_dropped[name]
        },
        "bytes_per_position": round(shard_bytes / rows, 2),
        "label_collisions": sum(note["label_collisions"] for note in notes),
        **(more or {}),
        "files": [*files, table],
    }
    card = data_card(manifest, game_counts).encode()
    publish(folder.files, DATA_CARD_FILE, 0, lambda target: target.write(card))
    publish_json(folder.files, MANIFEST, manifest)
    folder.finish(MANIFEST)
    mark_files_verified(folder.out, manifest)
    return manifest
