"""Turn the journal of a finished generation into a dataset.

    games      journal -> games.jsonl, games.pgn -> replay, as in ingest -> rows of searched moves
               -> shards -> manifest
    positions  journal, positions.parquet -> rows of searched positions -> shards -> manifest

A row has the search's policy in `visits`, and the columns `root_value`, `best_value` and
`simulations`. The other columns are the same as from ingesting games.pgn, or as in the position's
own dataset. The dataset depends only on the items, sorted by number.

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

from pipeline.dataset.files.columns import GAMES, SPLITS, PlaneFormat, schema
from pipeline.dataset.files.kernels import Records
from pipeline.dataset.files.shards import earlier_columns, game_numbers, rows_table, write_rows
from pipeline.dataset.files.stored_planes import number_array
from pipeline.dumps.chunks import Chunk, read_chunks
from pipeline.dumps.source import Source
from pipeline.ingest.chunk import IngestConfig, assign_splits, note_name, pack_rows
from pipeline.ingest.games import read_games
from pipeline.ingest.games_table import build_games_table
from pipeline.ingest.manifest import build_manifest
from pipeline.pgn import replay as pgn
from pipeline.selfplay.config import ExploreConfig
from pipeline.selfplay.draw import POSITIONS, read_drawn
from pipeline.selfplay.worker import RESULTS, Journals
from pipeline.storage.job_folder import JobFolder
from pipeline.storage.stores import file_hash, publish, publish_json

PGN, RECORDS = "games.pgn", "games.jsonl"
CHUNK_BYTES = 4 << 20
"""PGN text encoded at a time: about 300,000 half-moves, 185 MB of planes."""
SHARD_ROWS = 1 << 16
MAX_SIMULATIONS = np.iinfo(np.uint16).max


def build_dataset(
    folder: JobFolder,
    found: Journals,
    config: ExploreConfig,
    drawn: Mapping[str, Any],
    more: Mapping[str, Any],
) -> dict[str, Any]:
    """Build the dataset from the journal, delete the journal, and return the manifest."""
    folder.discard()  # removes an earlier build that was killed
    folder.make_notes()
    if config.plays:
        sources = [_encode_games(folder, found, config).describe()]
    else:
        _encode_positions(folder, found, config.ingest())
        sources = drawn["sources"]
    return build_manifest(folder, sources, config.ingest(), more)


def _encode_games(folder: JobFolder, found: Journals, config: ExploreConfig) -> Source:
    """Write the PGN, records and shards of the games; return games.pgn as the source."""
    lines = [found.finished[number] for number in sorted(found.finished)]

    def write_pgn(target: Any) -> None:
        for line in lines:
            target.write(line.read()["pgn"].encode())

    def write_records(target: Any) -> None:
        for line in lines:
            target.write(json.dumps(line.read()["record"], allow_nan=False).encode() + b"\n")

    publish(folder.files, PGN, len(lines), write_pgn)
    publish(folder.files, RECORDS, len(lines), write_records)
    source = Source(str(folder.files / PGN))
    for chunk in read_chunks([source], CHUNK_BYTES):
        entries = [
            line.read() for line in lines[chunk.first_game : chunk.first_game + len(chunk.starts)]
        ]
        _encode_chunk(folder, chunk, entries, config)
    return source


def _encode_chunk(
    folder: JobFolder, chunk: Chunk, entries: Sequence[Mapping[str, Any]], explore: ExploreConfig
) -> None:
    """Encode a chunk of games.pgn with its journal entries; write shards and the chunk's note."""
    config = explore.ingest()
    text = np.frombuffer(chunk.text, dtype=np.uint8)
    tagged = read_games(text, chunk.starts)
    plies_G = np.array([len(entry["record"]["moves"]) for entry in entries])
    rows = pgn.allocate_rows(int(plies_G.sum()) + pgn.MAX_PLIES + 2)
    _, filled = pgn.replay(text, tagged.games, tagged.setups, 0, rows)
    assert (tagged.games.plies == plies_G).all(), "PGN and record of a game have the same length"
    first_G = np.searchsorted(rows.game[:filled], np.arange(len(entries)))
    searches: list[list[Any]] = []
    for first, entry in zip(first_G.tolist(), entries, strict=True):
        penalty = explore.draw_penalty if entry["record"]["result"] == RESULTS[0] else 0.0
        for ply, value, best_value, *others in entry["searches"]:
            searches.append([first + ply, value - penalty, best_value - penalty, *others])
    rows_S = np.array([search[0] for search in searches], dtype=np.int64)
    taken = Records(rows.view(pgn.ROW, np.ndarray)).take(rows_S)
    columns = {name: taken[name] for name in pgn.REPLAYED}
    columns |= earlier_columns(pgn.collect_earlier_moves(rows, filled, config.history), rows_S)
    columns["game"] = game_numbers(taken["game"], chunk.first_game)
    packed_SW, splits_G = pack_rows(taken), assign_splits(tagged.games.identity, config)
    files = []
    for number, split in enumerate(SPLITS):
        in_split = np.flatnonzero(splits_G[taken["game"]] == number)
        if len(in_split):
            picked = {name: values[in_split] for name, values in columns.items()}
            path = folder.files / f"{split}-{chunk.index:05d}-0.parquet"
            seed, found = (config.seed, chunk.index, number), [searches[at] for at in in_split]
            files.append(
                _write_shard(path, seed, packed_SW[in_split], picked, found, config.planes)
            )
    table = build_games_table(tagged, text, chunk, splits_G)
    name = f"games-{chunk.index:05d}.parquet"
    publish(folder.notes, name, len(table), partial(pq.write_table, table))
    digest = hashlib.sha256(chunk.text).hexdigest()
    _publish_note(folder, chunk.index, digest, len(entries), columns["promotion"], files)


def _encode_positions(folder: JobFolder, found: Journals, config: IngestConfig) -> None:
    """Write the shards of the searched positions, and their note for the manifest."""
    drawn, files, promotions = folder.journal, [], []
    packed_NW, columns = read_drawn(drawn / POSITIONS)
    for number, searches in enumerate(_batches(found)):
        rows_S = np.array([search[0] for search in searches], dtype=np.int64)
        picked = {name: values[rows_S] for name, values in columns.items()}
        path, seed = folder.files / f"train-00000-{number}.parquet", (config.seed, number)
        files.append(_write_shard(path, seed, packed_NW[rows_S], picked, searches, config.planes))
        promotions.append(picked["promotion"])
    games = pq.ParquetFile(drawn / GAMES).metadata.num_rows
    content = (drawn / GAMES).read_bytes()
    publish(folder.notes, "games-00000.parquet", games, lambda target: target.write(content))
    _publish_note(folder, 0, file_hash(drawn / POSITIONS), games, np.concatenate(promotions), files)


def _batches(found: Journals) -> Iterator[list[list[Any]]]:
    """Yield the searches in order of position, in lists of at least SHARD_ROWS (last: the rest)."""
    searches: list[list[Any]] = []
    for number in sorted(found.finished):
        searches += found.finished[number].read()["searches"]
        if len(searches) >= SHARD_ROWS:
            yield searches
            searches = []
    if searches:
        yield searches


def _write_shard(
    path: Path,
    seed: tuple[int, ...],
    packed_SW: NDArray[np.uint64],
    columns: Mapping[str, NDArray[Any]],
    searches: Sequence[Sequence[Any]],
    form: PlaneFormat,
) -> dict[str, Any]:
    """Publish the shuffled rows of searches as a shard; return its entry for the note."""
    order = np.random.Generator(np.random.PCG64(seed)).permutation(len(searches))
    searches = [searches[at] for at in order]
    values_S2 = np.array([search[1:3] for search in searches], dtype=np.float64).clip(-1.0, 1.0)
    simulations_S = np.array([search[3] for search in searches]).clip(max=MAX_SIMULATIONS)
    shuffled = {name: column[order] for name, column in columns.items()}
    shuffled |= {"root_value": values_S2[:, 0], "best_value": values_S2[:, 1]}
    table = rows_table(packed_SW[order], shuffled | {"simulations": simulations_S}, form)
    place = table.schema.get_field_index("visits")
    table = table.set_column(place, table.schema.field(place), _visits(searches))
    done = publish(path.parent, path.name, len(table), partial(write_rows, table))
    split, _, _ = path.name.partition("-")
    sizes = {"rows": done.rows, "bytes": done.bytes, "sha256": done.sha256}
    return {"name": path.name, "split": split, **sizes}


def _visits(searches: Sequence[Sequence[Any]]) -> pa.Array:
    """Return the column `visits`: labels and their visit shares, normalized to sum to 1."""
    kind = schema().field("visits").type
    lengths_S = np.array([len(search[4]) for search in searches], dtype=np.int64)
    offsets = np.r_[0, np.cumsum(lengths_S)].astype(np.int32)
    labels = np.array([label for search in searches for label in search[4]], dtype=np.uint16)
    shares = np.array([share for search in searches for share in search[5]], dtype=np.float64)
    shares /= np.repeat(np.add.reduceat(shares, offsets[:-1]), lengths_S)
    moves = pa.StructArray.from_arrays(
        [number_array(labels), number_array(shares.astype(np.float32))],
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


def count_games(found: Journals) -> dict[str, Any]:
    """Return statistics of a generation's games."""
    endings: Counter[str] = Counter()
    results: Counter[str] = Counter()
    plies = searched = played_on = false = 0
    for line in found.finished.values():
        entry = line.read()
        record = entry["record"]
        endings[record["ending"]] += 1
        results[record["result"]] += 1
        plies += len(record["moves"])
        searched += len(entry["searches"])
        played_on += record["resign_ply"] is not None
        false += record["resign_was_wrong"]
    games = len(found.finished)
    return {
        "games": games,
        "results": dict(sorted(results.items())),
        "decisive_share": round(1.0 - results[RESULTS[0]] / games, 6),
        "mean_plies": round(plies / games, 3),
        "endings": dict(sorted(endings.items())),
        "resignations": endings["resignation"],
        "played_on": played_on,
        "false_resignations": false,
        "searched": searched,
    }


def count_searches(found: Journals, phases: Mapping[str, int]) -> dict[str, Any]:
    """Return statistics of searched positions; `phases` has the number drawn from each phase."""
    sums: Counter[str] = Counter()
    for line in found.finished.values():
        sums.update(line.read()["record"])
    return {
        "searched": sums["searched"],
        "over": sums["over"],
        "phases": dict(phases),
        "best_move_changed": round(sums["changed"] / max(sums["searched"], 1), 6),
    }


def summarize(manifest: Mapping[str, Any]) -> str:
    """Return the statistics of a generation as text."""
    found, rows = manifest["selfplay"], manifest["positions"]
    searched, seconds = found["searched"], found["timing"]["seconds"]
    if "games" in found:
        games = found["games"]
        shares = [f"{name} {100 * n / games:.1f} %" for name, n in found["endings"].items()]
        lines = [
            f"{games:,} games, {100 * found['decisive_share']:.1f} % decisive, "
            f"{found['mean_plies']:.1f} half-moves on average; {rows['total']:,} positions, "
            f"{rows['train']:,} of them for training",
            f"endings: {', '.join(shares)}",
            f"{found['played_on']} games continued past a resignation; resigning would have been "
            f"wrong in {found['false_resignations']}",
        ]
    else:
        phases = ", ".join(f"{count:,} {name}" for name, count in found["phases"].items())
        lines = [
            f"{searched:,} positions searched (drawn: {phases})",
            f"the search's best move differs from the policy's in "
            f"{100 * found['best_move_changed']:.1f} %",
        ]
    if "unfinished" in found:
        lines.append(f"{found['unfinished']:,} unfinished ones were skipped")
    speed = f"{seconds:,.1f} s, {searched / (seconds or 1.0):,.1f} searches/s"
    return "\n".join([*lines, speed])


def summarize_timing(found: Journals) -> dict[str, Any]:
    """Summarize the processes' times and devices, which differ between runs.

    `seconds` is the time during which at least one process worked, over all starts.
    """
    seconds, until = 0.0, 0.0
    for began, ended in sorted((each["began"], each["ended"]) for each in found.work):
        seconds += max(0.0, ended - max(began, until))
        until = max(until, ended)
    return {
        "seconds": round(seconds, 3),
        "processes": len(found.work),
        "devices": sorted({each["device"] for each in found.work}),
        "damaged_lines": found.damaged,
    }
