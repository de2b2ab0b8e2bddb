"""Write the manifest of an ingest from the notes of its chunks, and merge their tables of games.

The manifest does not count duplicate positions and positions shared between splits, which are not
sums over chunks. `fianchetto audit` counts them.
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
    hash_config,
    note_name,
)
from pipeline.ingest.data_card import GameCounts, format_data_card
from pipeline.ingest.examples import merge_examples
from pipeline.ingest.filters import GAME_STATUS, ROW_STATUS
from pipeline.ingest.games_table import choose_write_options
from pipeline.storage.job_folder import JobFolder
from pipeline.storage.stores import open_for_arrow, publish, publish_json

CONCURRENT_READS = 8
"""Number of notes to read concurrently: in a store, each is a request."""


def read_notes(folder: Path) -> list[dict[str, Any]]:
    """Return the notes of all chunks, in order; raises DatasetError for an invalid one."""
    existing = {path.name for path in folder.iterdir()} if folder.exists() else set()
    names = itertools.takewhile(existing.__contains__, map(note_name, itertools.count()))
    with ThreadPoolExecutor(CONCURRENT_READS) as pool:
        return list(pool.map(read_chunk_note, [folder / name for name in names]))


def _merge_games(folder: JobFolder, count: int) -> tuple[dict[str, Any], GameCounts]:
    """Merge the tables of `count` chunks into `games.parquet`; return its entry and the counts."""
    paths = [folder.notes / f"games-{index:05d}.parquet" for index in range(count)]
    types: dict[str, pa.DataType] = {}  # tables of puzzles have two more columns
    rows, counts = 0, GameCounts()
    for path in paths:
        with pq.ParquetFile(open_for_arrow(path)) as file:
            types |= dict(zip(file.schema_arrow.names, file.schema_arrow.types, strict=True))
            rows += file.metadata.num_rows
    schema = pa.schema(types)

    def write_tables(target: Any) -> None:
        # without a stored Arrow schema, readers see columns of text instead of dictionaries
        options = choose_write_options(schema) | {"store_schema": False}
        with pq.ParquetWriter(target, schema, **options) as writer:
            for path in paths:
                # `pq.read_table` would import pandas, which takes a quarter of a second
                with pq.ParquetFile(open_for_arrow(path)) as file:
                    table = file.read(use_threads=False)
                for field in schema:
                    if field.name not in table.schema.names:
                        table = table.append_column(field, pa.nulls(len(table), field.type))
                writer.write_table(table.select(schema.names))
                counts.add(table)

    return asdict(publish(folder.files, GAMES, rows, write_tables)) | {"split": None}, counts


def _explain_no_positions(
    sources: Sequence[Mapping[str, Any]],
    config: IngestConfig,
    games_read: int,
    names: Counter[str],
    reasons: Mapping[str, int],
    examples: Mapping[str, Mapping[str, Any]],
) -> str:
    """Explain why no position was kept: unknown names of players, or the reasons for dropping."""
    del names[""]
    if config.player and names and not names.keys() & set(config.player):
        frequent = ", ".join(f"{name!r} ({games:,})" for name, games in names.most_common(5))
        return (
            f"none of the {games_read:,} games has a move by "
            f"{' or '.join(map(repr, config.player))}: names must match the tags exactly; the most "
            f"frequent are {frequent}"
        )
    source_names = ", ".join(source["name"] for source in sources)
    damage = "; ".join(source["damage"] for source in sources if source["damage"])
    counts = "; ".join(f"{name}: {count}" for name, count in reasons.items())
    reason = counts or damage or "no game was found"
    first = next(iter(examples.values()), None)
    example = f"; the first is at {first['where']}: {first['text']}" if first else ""
    return f"no positions in {source_names}: {games_read} games read ({reason}){example}"


def config_to_json(config: IngestConfig) -> dict[str, Any]:
    """Return a configuration as JSON values, with lists for tuples."""
    values: dict[str, Any] = json.loads(json.dumps(asdict(config)))
    return values


def build_manifest(
    folder: JobFolder,
    sources: Sequence[Mapping[str, Any]],
    config: IngestConfig,
    more: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Publish `games.parquet`, the data card, and then the manifest; return the manifest.

    `sources` are the dumps' entries in it, and `more` are further fields. Raises DatasetError if
    there are no positions, or chunks of other settings.
    """
    notes = read_notes(folder.notes)
    # the notes of self-play have no config
    made_by = {(note["config"], note["rows_version"]) for note in notes if "config" in note}
    if made_by - {(hash_config(config), ROWS_VERSION)}:
        raise DatasetError(OTHER_MACHINE_ERROR.format(out=folder.out))
    status, rows_dropped, names = (Counter[str]() for _ in range(3))
    for note in notes:
        status.update(note["status"])
        rows_dropped.update(note["rows_dropped"])
        names.update(note.get("names", {}))
    games_read, rows = (sum(note[field] for note in notes) for field in ("games", "rows"))
    dropped = {name: status[name] for name in GAME_STATUS[1:] if status[name]}
    examples = merge_examples(notes, sources)
    if not rows:
        reasons = dropped | dict(rows_dropped)
        raise DatasetError(
            _explain_no_positions(sources, config, games_read, names, reasons, examples)
        )
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
        "config": config_to_json(config),
        "games": {"read": games_read, "used": status["used"], "dropped": dropped},
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
    card = format_data_card(manifest, game_counts).encode()
    publish(folder.files, DATA_CARD_FILE, 0, lambda target: target.write(card))
    publish_json(folder.files, MANIFEST, manifest)
    folder.finish(MANIFEST)
    mark_files_verified(folder.out, manifest)
    return manifest
