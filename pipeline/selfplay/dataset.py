"""Turn the journal of a finished generation into a dataset.

    games      journal -> games.jsonl, games.pgn -> replay, as in ingest -> rows of searched
               positions -> shards -> manifest
    positions  journal, positions.parquet -> rows of searched positions -> shards -> manifest

A row has the search's policy in `visits`, and the columns `root_value`, `best_value` and
`simulations`. Its other columns are those that ingesting games.pgn would give, or those of
positions.parquet. The journal's items are sorted by number, so the dataset does not depend on the
order in which they finished.

Axes: R rows, S searches, G games of a chunk, W words of a position.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from pipeline.dataset.files.columns import GAMES, SPLITS, PlaneFormat, make_schema
from pipeline.dataset.files.kernels import Records
from pipeline.dataset.files.shards import (
    make_earlier_columns,
    make_game_column,
    make_rows_table,
    write_rows,
)
from pipeline.dataset.files.stored_planes import to_arrow
from pipeline.dumps.chunks import Chunk, read_chunks
from pipeline.dumps.source import Source
from pipeline.ingest.chunk import IngestConfig, assign_splits, note_name, pack_rows
from pipeline.ingest.games import read_games
from pipeline.ingest.games_table import build_games_table
from pipeline.ingest.manifest import build_manifest
from pipeline.pgn import replay as pgn
from pipeline.selfplay.config import ExploreConfig
from pipeline.selfplay.draw import POSITIONS_FILE, read_drawn
from pipeline.selfplay.worker import RESULT_TAGS, Journals, StoredSearch
from pipeline.storage.job_folder import JobFolder
from pipeline.storage.stores import hash_file, publish, publish_json

PGN_FILE, RECORDS_FILE = "games.pgn", "games.jsonl"
CHUNK_BYTES = 4 << 20
"""Amount of PGN text encoded at a time: about 300,000 half-moves, 185 MB of planes."""
MIN_SHARD_ROWS = 1 << 16
"""Minimum number of rows of a shard of searched positions, except the last one."""
MAX_SIMULATIONS = np.iinfo(np.uint16).max
"""Maximum of the column `simulations`; larger numbers are stored as this one."""


def build_dataset(
    folder: JobFolder,
    journals: Journals,
    config: ExploreConfig,
    drawn: Mapping[str, Any],
    entries: Mapping[str, Any],
) -> dict[str, Any]:
    """Build the dataset from the journals, delete them, and return the manifest.

    `drawn` is the content of drawn.json (unused for games). `entries` are added to the manifest.
    """
    folder.discard()  # the files of a build that was killed
    folder.make_notes_folder()
    if config.plays_games:
        sources = [_encode_games(folder, journals, config).describe()]
    else:
        _encode_positions(folder, journals, config.make_ingest_config())
        sources = drawn["sources"]
    return build_manifest(folder, sources, config.make_ingest_config(), entries)


def _encode_games(folder: JobFolder, journals: Journals, config: ExploreConfig) -> Source:
    """Write games.pgn, games.jsonl and the shards; return games.pgn as the source."""
    lines = [journals.finished[number] for number in sorted(journals.finished)]

    def write_pgn(target: Any) -> None:
        for line in lines:
            target.write(line.read()["pgn"].encode())

    def write_records(target: Any) -> None:
        for line in lines:
            target.write(json.dumps(line.read()["record"], allow_nan=False).encode() + b"\n")

    publish(folder.files, PGN_FILE, len(lines), write_pgn)
    publish(folder.files, RECORDS_FILE, len(lines), write_records)
    source = Source(str(folder.files / PGN_FILE))
    for chunk in read_chunks([source], CHUNK_BYTES):
        entries = [
            line.read() for line in lines[chunk.first_game : chunk.first_game + len(chunk.starts)]
        ]
        _encode_chunk(folder, chunk, entries, config)
    return source


def _encode_chunk(
    folder: JobFolder, chunk: Chunk, entries: Sequence[Mapping[str, Any]], explore: ExploreConfig
) -> None:
    """Write the shards and note of a chunk of games.pgn, with its games' journal entries."""
    config = explore.make_ingest_config()
    text = np.frombuffer(chunk.text, dtype=np.uint8)
    tagged = read_games(text, chunk.starts)
    plies_G = np.array([len(entry["record"]["moves"]) for entry in entries])
    rows = pgn.allocate_rows(int(plies_G.sum()) + pgn.MAX_PLIES + 2)
    _, filled = pgn.replay(text, tagged.games, tagged.setups, 0, rows)
    assert (tagged.games.plies == plies_G).all(), "PGN and record of a game have the same length"
    first_G = np.searchsorted(rows.game[:filled], np.arange(len(entries)))
    searches: list[StoredSearch] = []
    for first, entry in zip(first_G.tolist(), entries, strict=True):
        penalty = explore.draw_penalty if entry["record"]["result"] == RESULT_TAGS[0] else 0.0
        for ply, value, best_value, *others in entry["searches"]:
            searches.append(
                StoredSearch(first + ply, value - penalty, best_value - penalty, *others)
            )
    rows_S = np.array([search.row for search in searches], dtype=np.int64)
    searched = Records(rows.view(pgn.ROW_DTYPE, np.ndarray)).take(rows_S)
    columns = {name: searched[name] for name in pgn.REPLAYED_COLUMNS}
    columns |= make_earlier_columns(pgn.collect_earlier_moves(rows, filled, config.history), rows_S)
    columns["game"] = make_game_column(searched["game"], chunk.first_game)
    packed_SW, splits_G = pack_rows(searched), assign_splits(tagged.games.identity, config)
    files = []
    for number, split in enumerate(SPLITS):
        in_split = np.flatnonzero(splits_G[searched["game"]] == number)
        if len(in_split):
            path = folder.files / f"{split}-{chunk.index:05d}-0.parquet"
            shard = _write_shard(
                path,
                (config.seed, chunk.index, number),
                packed_SW[in_split],
                {name: values[in_split] for name, values in columns.items()},
                [searches[index] for index in in_split],
                config.planes,
            )
            files.append(shard)
    table = build_games_table(tagged, text, chunk, splits_G)
    name = f"games-{chunk.index:05d}.parquet"
    publish(folder.notes, name, len(table), partial(pq.write_table, table))
    digest = hashlib.sha256(chunk.text).hexdigest()
    _publish_note(folder, chunk.index, digest, len(entries), columns["promotion"], files)


def _encode_positions(folder: JobFolder, journals: Journals, config: IngestConfig) -> None:
    """Write the shards of the searched positions, and their note for the manifest."""
    drawn, files, promotions = folder.journal, [], []
    packed_NW, columns = read_drawn(drawn / POSITIONS_FILE)
    for number, searches in enumerate(_batch_searches(journals)):
        rows_S = np.array([search.row for search in searches], dtype=np.int64)
        searched = {name: values[rows_S] for name, values in columns.items()}
        path, seed = folder.files / f"train-00000-{number}.parquet", (config.seed, number)
        files.append(_write_shard(path, seed, packed_NW[rows_S], searched, searches, config.planes))
        promotions.append(searched["promotion"])
    games = pq.ParquetFile(drawn / GAMES).metadata.num_rows
    content = (drawn / GAMES).read_bytes()
    publish(folder.notes, "games-00000.parquet", games, lambda target: target.write(content))
    _publish_note(
        folder, 0, hash_file(drawn / POSITIONS_FILE), games, np.concatenate(promotions), files
    )


def _batch_searches(journals: Journals) -> Iterator[list[StoredSearch]]:
    """Yield the sorted searches, in lists of MIN_SHARD_ROWS or more; the last may be shorter."""
    searches: list[StoredSearch] = []
    for number in sorted(journals.finished):
        entry = journals.finished[number].read()
        searches += [StoredSearch(*fields) for fields in entry["searches"]]
        if len(searches) >= MIN_SHARD_ROWS:
            yield searches
            searches = []
    if searches:
        yield searches


def _write_shard(
    path: Path,
    seed: tuple[int, ...],
    packed_SW: NDArray[np.uint64],
    columns: Mapping[str, NDArray[Any]],
    searches: Sequence[StoredSearch],
    planes: PlaneFormat,
) -> dict[str, Any]:
    """Publish the shuffled rows of searches as a shard; return its entry for the note."""
    order_S = np.random.Generator(np.random.PCG64(seed)).permutation(len(searches))
    searches = [searches[index] for index in order_S]
    values_S2 = np.array([(search.value, search.best_value) for search in searches])
    values_S2 = values_S2.clip(-1.0, 1.0)
    simulations_S = np.array([search.simulations for search in searches]).clip(max=MAX_SIMULATIONS)
    shuffled = {name: column[order_S] for name, column in columns.items()}
    shuffled |= {"root_value": values_S2[:, 0], "best_value": values_S2[:, 1]}
    table = make_rows_table(packed_SW[order_S], shuffled | {"simulations": simulations_S}, planes)
    index = table.schema.get_field_index("visits")
    table = table.set_column(index, table.schema.field(index), _make_visits_column(searches))
    file = publish(path.parent, path.name, len(table), partial(write_rows, table))
    split, _, _ = path.name.partition("-")
    sizes = {"rows": file.rows, "bytes": file.bytes, "sha256": file.sha256}
    return {"name": path.name, "split": split, **sizes}


def _make_visits_column(searches: Sequence[StoredSearch]) -> pa.Array:
    """Return the column `visits`: labels and their visit shares, normalized to sum to 1."""
    kind = make_schema().field("visits").type
    lengths_S = np.array([len(search.labels) for search in searches], dtype=np.int64)
    offsets = np.r_[0, np.cumsum(lengths_S)].astype(np.int32)
    labels = np.array([label for search in searches for label in search.labels], dtype=np.uint16)
    shares = np.array([share for search in searches for share in search.shares], dtype=np.float64)
    shares /= np.repeat(np.add.reduceat(shares, offsets[:-1]), lengths_S)
    moves = pa.StructArray.from_arrays(
        [to_arrow(labels), to_arrow(shares.astype(np.float32))],
        fields=list(kind.value_type),
    )
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), moves, type=kind)


def _publish_note(
    folder: JobFolder,
    index: int,
    digest: str,
    games: int,
    promotions: NDArray[np.uint8],
    files: Sequence[Mapping[str, Any]],
) -> None:
    note = {
        "chunk": index,
        "text_sha256": digest,
        "games": games,
        "status": {"used": games},
        "rows": len(promotions),
        "rows_dropped": {},
        "label_collisions": int(np.isin(promotions, (2, 3, 4)).sum()),
        "files": files,
    }
    publish_json(folder.notes, note_name(index), note)


def summarize_games(journals: Journals) -> dict[str, Any]:
    """Return statistics of a generation's games, for the manifest."""
    endings: Counter[str] = Counter()
    results: Counter[str] = Counter()
    plies = searched = played_on = false_resignations = 0
    for line in journals.finished.values():
        entry = line.read()
        record = entry["record"]
        endings[record["ending"]] += 1
        results[record["result"]] += 1
        plies += len(record["moves"])
        searched += len(entry["searches"])
        played_on += record["resign_ply"] is not None
        false_resignations += record["resign_was_wrong"]
    games = len(journals.finished)
    return {
        "games": games,
        "results": dict(sorted(results.items())),
        "decisive_share": round(1.0 - results[RESULT_TAGS[0]] / games, 6),
        "mean_plies": round(plies / games, 3),
        "endings": dict(sorted(endings.items())),
        "resignations": endings["resignation"],
        "played_on": played_on,
        "false_resignations": false_resignations,
        "searched": searched,
    }


def summarize_searches(journals: Journals, phases: Mapping[str, int]) -> dict[str, Any]:
    """Return statistics of searched positions; `phases` has the number drawn from each phase."""
    sums: Counter[str] = Counter()
    for line in journals.finished.values():
        sums.update(line.read()["record"])
    return {
        "searched": sums["searched"],
        "over": sums["over"],
        "phases": dict(phases),
        "best_move_changed": round(sums["changed"] / max(sums["searched"], 1), 6),
    }


def format_summary(manifest: Mapping[str, Any]) -> str:
    """Format the statistics of a generation as text."""
    figures, rows = manifest["selfplay"], manifest["positions"]
    searched, seconds = figures["searched"], figures["timing"]["seconds"]
    if "games" in figures:
        items, games = "games", figures["games"]
        shares = [f"{name} {100 * n / games:.1f} %" for name, n in figures["endings"].items()]
        lines = [
            f"{games:,} games, {100 * figures['decisive_share']:.1f} % decisive, "
            f"{figures['mean_plies']:.1f} half-moves on average; {rows['total']:,} positions, "
            f"{rows['train']:,} of them for training",
            f"endings: {', '.join(shares)}",
            f"{figures['played_on']} games were played on although a side would have resigned; "
            f"resigning would have been wrong in {figures['false_resignations']} of them",
        ]
    else:
        items = "positions"
        phases = ", ".join(f"{count:,} {name}" for name, count in figures["phases"].items())
        lines = [
            f"{searched:,} positions searched (drawn: {phases})",
            f"the search's best move differs from the policy's in "
            f"{100 * figures['best_move_changed']:.1f} % of the positions",
        ]
    if "unfinished" in figures:
        lines.append(f"{figures['unfinished']:,} unfinished {items} were skipped")
    speed = f"{seconds:,.1f} s, {searched / (seconds or 1.0):,.1f} searches/s"
    return "\n".join([*lines, speed])


def summarize_timing(journals: Journals) -> dict[str, Any]:
    """Return the processes' times and devices, for the manifest; they differ between runs.

    `seconds` is the time in which at least one process worked, over all starts.
    """
    seconds, until = 0.0, 0.0
    for began, ended in sorted((work["began"], work["ended"]) for work in journals.work):
        seconds += max(0.0, ended - max(began, until))
        until = max(until, ended)
    return {
        "seconds": round(seconds, 3),
        "processes": len(journals.work),
        "devices": sorted({work["device"] for work in journals.work}),
        "damaged_lines": journals.damaged_lines,
    }
