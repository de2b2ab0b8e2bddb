"""The journal of a finished generation into a dataset.

    games      journal -> games.jsonl, games.pgn -> replayed as ingest does -> rows of searched moves -> shards -> manifest
    positions  journal, positions.parquet -> rows of searched positions -> shards -> manifest

A row has the search's policy in `visits`, and `root_value`, `best_value` and `simulations`. Its other columns are those of
ingesting games.pgn, or of the position in its dataset. The dataset depends only on the items in the order of their numbers.

Axes: R rows, S searches, G games of a chunk, W words of a position.
"""

import hashlib
import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from pipeline.dataset.files.columns import Form, schema
from pipeline.dataset.files.permute import Records
from pipeline.dataset.files.shard_files import open_shard
from pipeline.dataset.files.shards import (
    GAMES,
    SPLITS,
    earlier_columns,
    file_hash,
    game_numbers,
    number_array,
    packed_table,
    publish,
    publish_json,
    write_rows,
)
from pipeline.dumps.reader import Source, chunks
from pipeline.ingest.chunk import ChunkTask, IngestConfig, packed_of, part_name, read_games, split_of
from pipeline.ingest.games_table import games_table
from pipeline.ingest.manifest import build_manifest
from pipeline.pgn import replay as pgn
from pipeline.selfplay.config import ExploreConfig
from pipeline.selfplay.draw import KEPT, POSITIONS, UNKNOWN
from pipeline.selfplay.journal import FOLDER, Journals
from pipeline.storage.building import BUILDING, PARTS, begin, discard

PGN, RECORDS = "games.pgn", "games.jsonl"
CHUNK_BYTES = 4 << 20
"""PGN text that becomes shards at a time: about 300,000 half-moves, 185 MB of planes."""
SHARD_ROWS = 1 << 16
MOST_SIMULATIONS = np.iinfo(np.uint16).max
DRAWN_RESULT = "1/2-1/2"


def build(
    out: Path, found: Journals, config: ExploreConfig, drawn: Mapping[str, Any], more: Mapping[str, Any]
) -> dict[str, Any]:
    """Make the dataset of a generation whose items are all in the journal, and return its manifest; delete the journal."""
    discard(out)  # an earlier build that was killed
    begin(out, {"items": len(found.places)})
    if config.plays:
        sources: list[Any] = _encode_games(out, found, config)
    else:
        _encode_positions(out, found, config.ingest())
        sources = [
            SimpleNamespace(name=entry["name"], damage=entry["damage"], describe=lambda entry=entry: entry)
            for entry in drawn["sources"]
        ]
    manifest = build_manifest(out, sources, config.ingest(), more)
    clear(out)
    return manifest


def clear(out: Path) -> None:
    """Delete what a finished dataset does not need."""
    discard(out)
    shutil.rmtree(out / FOLDER, ignore_errors=True)


# ---------------------------------------------------------------- games


def _encode_games(out: Path, found: Journals, config: ExploreConfig) -> list[Source]:
    """Write games.pgn, games.jsonl and the shards of the games in the journal; return the source of the rows."""
    lines = [found.places[number] for number in sorted(found.places)]

    def write_pgn(target: Any) -> None:
        for line in lines:
            target.write(line.read()["pgn"].encode())

    def write_records(target: Any) -> None:
        for line in lines:
            target.write(json.dumps(line.read()["record"], allow_nan=False).encode() + b"\n")

    publish(out / BUILDING, PGN, len(lines), write_pgn)
    publish(out / BUILDING, RECORDS, len(lines), write_records)
    source = Source(str(out / BUILDING / PGN))
    for chunk in chunks([source], CHUNK_BYTES):
        entries = [line.read() for line in lines[chunk.first_game : chunk.first_game + len(chunk.starts)]]
        _encode_chunk(ChunkTask(chunk, str(out), config.ingest()), entries, config.draw_penalty)
    return [source]


def _encode_chunk(task: ChunkTask, entries: Sequence[Mapping[str, Any]], draw_penalty: float) -> None:
    """Encode a chunk of games.pgn and its journal lines into shards and a note for the manifest."""
    chunk = task.chunk
    text = np.frombuffer(chunk.text, dtype=np.uint8)
    tagged = read_games(text, chunk.starts, task.config)
    plies_G = np.array([len(entry["record"]["moves"]) for entry in entries])
    rows = pgn.allocate_rows(int(plies_G.sum()) + pgn.MAX_PLIES + 2)
    _, filled = pgn.replay(text, tagged.games, tagged.setups, 0, 1, rows)
    assert (tagged.games.plies == plies_G).all(), "a game's PGN has its moves"
    searches = [search for entry in entries for search in entry["searches"]]
    first_G = np.searchsorted(rows.game[:filled], np.arange(len(entries)))
    counts_G = [len(entry["searches"]) for entry in entries]
    rows_S = np.repeat(first_G, counts_G) + np.array([search[0] for search in searches], dtype=np.int64)
    penalty_G = [draw_penalty * (entry["record"]["result"] == DRAWN_RESULT) for entry in entries]
    splits_S = split_of(tagged.games.identity, task.config)[rows.game[rows_S]]
    earlier_RH = pgn.earlier_moves(rows, filled, task.config.history)
    taken = Records(rows.view(pgn.ROW, np.ndarray)).take(rows_S)
    columns = pgn.select_columns(taken) | earlier_columns(earlier_RH, rows_S)
    columns["game"] = game_numbers(taken["game"], chunk.first_game)
    columns |= _values(searches, np.repeat(penalty_G, counts_G))
    files = []
    for number, split in enumerate(SPLITS):
        mine = np.flatnonzero(splits_S == number)
        if len(mine):
            mine = np.random.Generator(np.random.PCG64((task.config.seed, chunk.index, 0, number))).permutation(mine)
            picked = {name: values[mine] for name, values in columns.items()}
            table = _table(packed_of(taken)[mine], picked, [searches[at] for at in mine], task.config.planes)
            files.append(_write_shard(Path(task.out), f"{split}-{chunk.index:05d}-0.parquet", split, table))
    table = games_table(tagged, text, chunk, split_of(tagged.games.identity, task.config))
    parts = Path(task.out) / PARTS
    publish(parts, f"games-{chunk.index:05d}.parquet", len(table), lambda target: pq.write_table(table, target))
    status = np.bincount(tagged.games.status, minlength=len(pgn.STATUS))
    note = {
        "chunk": chunk.index,
        "text_sha256": hashlib.sha256(chunk.text).hexdigest(),
        "games": len(entries),
        "status": {name: int(count) for name, count in zip(pgn.STATUS, status, strict=True) if count},
        "rows": len(searches),
        "rows_dropped": {},
        "label_collisions": _collisions(columns),
        "files": files,
    }
    publish_json(parts, part_name(chunk.index), note)


# ---------------------------------------------------------------- positions


def _encode_positions(out: Path, found: Journals, config: IngestConfig) -> None:
    """Write the shards of the searched positions, and a note for the manifest."""
    files, rows, collisions = [], 0, 0
    packed_RW, columns = _read_drawn(out / FOLDER / POSITIONS)
    for number, searches in enumerate(_batches(found)):
        order = np.random.Generator(np.random.PCG64((config.seed, number))).permutation(len(searches))
        searches = [searches[at] for at in order]
        rows_S = np.array([search[0] for search in searches], dtype=np.int64)
        picked = {name: values[rows_S] for name, values in columns.items()} | _values(searches)
        table = _table(packed_RW[rows_S], picked, searches, config.planes)
        files.append(_write_shard(out, f"train-00000-{number}.parquet", "train", table))
        rows += len(searches)
        collisions += _collisions(picked)
    parts, games = out / PARTS, pq.ParquetFile(out / FOLDER / GAMES).metadata.num_rows
    publish(parts, "games-00000.parquet", games, partial(_copy, out / FOLDER / GAMES))
    note = {
        "chunk": 0,
        "text_sha256": file_hash(out / FOLDER / POSITIONS),
        "games": games,
        "status": {"used": games},
        "rows": rows,
        "rows_dropped": {},
        "label_collisions": collisions,
        "files": files,
    }
    publish_json(parts, part_name(0), note)


def _batches(found: Journals) -> Iterator[list[list[Any]]]:
    """Yield the searches in the order of their positions, SHARD_ROWS or a few more at a time."""
    searches: list[list[Any]] = []
    for number in sorted(found.places):
        searches += found.places[number].read()["searches"]
        if len(searches) >= SHARD_ROWS:
            yield searches
            searches = []
    if searches:
        yield searches


def _read_drawn(path: Path) -> tuple[NDArray[np.uint64], dict[str, NDArray[Any]]]:
    """Return the drawn positions, packed and as columns."""
    with open_shard(path) as reader:
        names = [name for name in (*KEPT, *UNKNOWN) if name != "planes"]
        groups = [reader.read_packed(group, names) for group in range(len(reader.groups))]
    columns = {name: np.concatenate([columns[name] for columns, _ in groups]) for name in groups[0][0]}
    return np.concatenate([packed for _, packed in groups]), columns


def _copy(path: Path, target: Any) -> None:
    with path.open("rb") as file:
        shutil.copyfileobj(file, target)


# ---------------------------------------------------------------- both


def _values(searches: Sequence[Sequence[Any]], penalty_S: NDArray[np.float64] | float = 0.0) -> dict[str, NDArray[Any]]:
    """Return the columns of searches that are numbers; values are the mover's, less a penalty."""
    values_S2 = np.array([search[1:3] for search in searches], dtype=np.float64).reshape(-1, 2)
    root_S, best_S = (values_S2.T - penalty_S).clip(-1.0, 1.0).astype(np.float32)
    simulations_S = np.array([search[3] for search in searches], dtype=np.int64).clip(max=MOST_SIMULATIONS)
    return {"root_value": root_S, "best_value": best_S, "simulations": simulations_S.astype(np.uint16)}


def _table(
    packed_RW: NDArray[np.uint64], columns: Mapping[str, NDArray[Any]], searches: Sequence[Sequence[Any]], form: Form
) -> pa.Table:
    """Return the table of a shard, with the column `visits` from the searches."""
    table = packed_table(packed_RW, columns, form)
    place = table.schema.get_field_index("visits")
    return table.set_column(place, table.schema.field(place), _visits(searches))


def _visits(searches: Sequence[Sequence[Any]]) -> pa.Array:
    """Return the column `visits`: labels and their shares, which sum to one."""
    kind = schema().field("visits").type
    lengths_S = np.array([len(search[4]) for search in searches], dtype=np.int64)
    offsets = np.r_[0, np.cumsum(lengths_S)].astype(np.int32)
    labels = np.array([label for search in searches for label in search[4]], dtype=np.uint16)
    shares = np.array([share for search in searches for share in search[5]], dtype=np.float64)
    shares /= np.repeat(np.add.reduceat(shares, offsets[:-1]), lengths_S)
    moves = pa.StructArray.from_arrays(
        [number_array(labels), number_array(shares.astype(np.float32))], fields=list(kind.value_type)
    )
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), moves, type=kind)


def _write_shard(out: Path, name: str, split: str, table: pa.Table) -> dict[str, Any]:
    """Publish a shard and return its entry in a note."""
    done = publish(out / BUILDING, name, len(table), partial(write_rows, table))
    return {"name": name, "split": split, "rows": done.rows, "bytes": done.bytes, "sha256": done.sha256}


def _collisions(columns: Mapping[str, NDArray[Any]]) -> int:
    """Return the rows whose label stands for several promotions."""
    return int(np.isin(columns["promotion"], (2, 3, 4)).sum())
