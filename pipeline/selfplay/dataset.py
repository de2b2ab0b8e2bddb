"""The journal of a finished generation into a dataset: the way that ingest goes, through the games' own PGN.

    journal -> games.jsonl, games.pgn -> replay -> the rows of full searches, with what was thought -> shards -> manifest

A row is what ingesting games.pgn makes of the position, with `visits` and `root_value` beside it, so there is one way from
moves to rows, and games.parquet tells where in games.pgn each game lies. All follows from the journal's games by number.

Axes: R rows replayed, T thoughts.
"""

import hashlib
import json
import shutil
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from pipeline.dataset.files.columns import schema
from pipeline.dataset.files.permute import Records
from pipeline.dataset.files.shards import (
    SPLITS,
    earlier_columns,
    game_numbers,
    number_array,
    packed_table,
    publish,
    publish_json,
    write_rows,
)
from pipeline.dumps.reader import Chunk, Source, chunks
from pipeline.ingest.chunk import ChunkTask, packed_of, part_name, read_games, split_of
from pipeline.ingest.games_table import games_table
from pipeline.ingest.manifest import build_manifest
from pipeline.pgn import replay as pgn
from pipeline.selfplay.config import ExploreConfig, ExploreError, draw_score
from pipeline.selfplay.journal import FOLDER, Journals
from pipeline.storage.building import BUILDING, PARTS, begin, discard

PGN, RECORDS = "games.pgn", "games.jsonl"
CHUNK_BYTES = 4 << 20
"""PGN text that becomes shards at a time: about 300,000 half-moves, 185 MB of planes."""


def build(out: Path, found: Journals, config: ExploreConfig, more: Mapping[str, Any]) -> dict[str, Any]:
    """Make the dataset of a generation whose games are all in the journal, and return its manifest; the journal then goes."""
    lines = [found.places[number] for number in range(config.games)]

    def write_pgn(target: Any) -> None:
        for line in lines:
            target.write(line.read()["pgn"].encode())

    def write_records(target: Any) -> None:
        for line in lines:
            target.write(json_line(line.read()["record"]))

    discard(out)  # what this generation was made into before it was killed
    begin(out, {"games": len(lines)})
    publish(out / BUILDING, PGN, len(lines), write_pgn)
    publish(out / BUILDING, RECORDS, len(lines), write_records)
    source = Source(str(out / BUILDING / PGN))
    games = 0
    for chunk in chunks([source], CHUNK_BYTES):
        entries = [line.read() for line in lines[chunk.first_game : chunk.first_game + len(chunk.starts)]]
        _encode(ChunkTask(chunk, str(out), config.ingest()), entries, config)
        games += len(entries)
    if games != len(lines):
        raise ExploreError(f"{out / PGN} has {games} games and should have {len(lines)}: run the same command again")
    manifest = build_manifest(out, [source], config.ingest(), more)
    clear(out)
    return manifest


def clear(out: Path) -> None:
    """Take away what a finished dataset needs no longer."""
    discard(out)
    shutil.rmtree(out / FOLDER, ignore_errors=True)


def json_line(record: Mapping[str, Any]) -> bytes:
    """Write a record as a line of games.jsonl."""
    return json.dumps(record, allow_nan=False).encode() + b"\n"


def _encode(task: ChunkTask, entries: Sequence[Mapping[str, Any]], config: ExploreConfig) -> None:
    """Turn a chunk of games.pgn and its journal lines into shards, and the notes that the manifest is made of."""
    parts, chunk = Path(task.out) / PARTS, task.chunk
    text = np.frombuffer(chunk.text, dtype=np.uint8)
    tagged = read_games(text, chunk.starts, task.config)
    rows = pgn.allocate_rows(sum(entry["record"]["plies"] for entry in entries) + pgn.MAX_PLIES + 2)
    _, filled = pgn.replay(text, tagged.games, tagged.setups, 0, 1, rows)
    _check(chunk, tagged.games, entries)
    thoughts = [(game, *thought) for game, entry in enumerate(entries) for thought in entry["thoughts"]]
    first_G = np.searchsorted(rows.game[:filled], np.arange(len(entries)))
    rows_T = np.array([first_G[thought[0]] + thought[1] for thought in thoughts], dtype=np.int64)
    splits_G = split_of(tagged.games.identity, task.config)
    told = {
        "visits": visits_column([(thought[4], thought[5]) for thought in thoughts]),
        "root_value": _root_values(thoughts, entries, rows, rows_T, config),
    }
    files = _write(task, rows, rows_T, splits_G[rows.game[rows_T]], told)
    table = games_table(tagged, text, chunk, splits_G)
    publish(parts, f"games-{chunk.index:05d}.parquet", len(table), lambda target: pq.write_table(table, target))
    counts = np.bincount(tagged.games.status, minlength=len(pgn.STATUS))
    note = {
        "chunk": chunk.index,
        "text_sha256": hashlib.sha256(chunk.text).hexdigest(),
        "games": len(entries),
        "status": {name: int(count) for name, count in zip(pgn.STATUS, counts, strict=True) if count},
        "rows": len(rows_T),
        "rows_dropped": {},  # that the others are no rows is what was asked for
        "label_collisions": int(np.isin(rows.promotion[rows_T], (2, 3, 4)).sum()),
        "files": files,
    }
    publish_json(parts, part_name(chunk.index), note)


def _check(chunk: Chunk, games: pgn.Games, entries: Sequence[Mapping[str, Any]]) -> None:
    """Raise ExploreError for a game whose PGN does not give the moves that its journal line has."""
    for game, entry in enumerate(entries):
        plies = entry["record"]["plies"]
        wanted = pgn.USED if plies else pgn.NO_MOVES
        if games.status[game] != wanted or games.plies[game] != plies:
            raise ExploreError(
                f"game {chunk.first_game + game} cannot be replayed ({pgn.STATUS[games.status[game]]}): the journal is"
                f" damaged; delete {FOLDER} to play again"
            )


def visits_column(moves_R: Sequence[tuple[Sequence[int], Sequence[float]] | None]) -> pa.Array:
    """Make the column `visits` of rows: labels and their shares, which sum to one again, or None for null."""
    kind = schema().field("visits").type
    known_R = np.array([moves is not None for moves in moves_R], dtype=np.bool_)
    found = [moves for moves in moves_R if moves is not None]
    lengths_R = np.zeros(len(moves_R), dtype=np.int64)
    lengths_R[known_R] = [len(labels) for labels, _ in found]
    offsets = np.zeros(len(moves_R) + 1, dtype=np.int32)
    np.cumsum(lengths_R, out=offsets[1:])
    labels = np.array([label for moves in found for label in moves[0]], dtype=np.uint16)
    shares = np.array([share for moves in found for share in moves[1]], dtype=np.float64)
    if len(found):
        begins = offsets[:-1][known_R]
        shares /= np.repeat(np.add.reduceat(shares, begins), lengths_R[known_R])
    moves = pa.StructArray.from_arrays(
        [number_array(labels), number_array(shares.astype(np.float32))], fields=list(kind.value_type)
    )
    mask = None if known_R.all() else pa.array(~known_R)
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), moves, type=kind, mask=mask)


def _root_values(
    thoughts: Sequence[Sequence[Any]],
    entries: Sequence[Mapping[str, Any]],
    rows: pgn.Rows,
    rows_T: NDArray[np.int64],
    config: ExploreConfig,
) -> NDArray[np.float32]:
    """Return the search's values, mover's view, with what the configuration says of drawn games."""
    values_T = np.array([thought[2] for thought in thoughts], dtype=np.float64)
    if not (config.draw_penalty or config.draw_material):
        return values_T.astype(np.float32)
    drawn_G = np.array([entry["record"]["result"] == "1/2-1/2" for entry in entries])
    white_G = np.array([draw_score(config, entry["record"]) for entry in entries])
    games_T = np.array([thought[0] for thought in thoughts], dtype=np.int64)
    whites_T = np.where(rows.black[rows_T] == 0, 1.0, -1.0)
    values_T += whites_T * white_G[games_T] - config.draw_penalty * drawn_G[games_T]
    return values_T.clip(-1.0, 1.0).astype(np.float32)


def _write(
    task: ChunkTask, rows: pgn.Rows, rows_T: NDArray[np.int64], splits_T: NDArray[np.uint8], told: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Write a shard a split, its rows shuffled: give the files."""
    files = []
    earlier_RH = pgn.earlier_moves(rows, int(rows_T.max(initial=-1)) + 1, task.config.history)
    for number, split in enumerate(SPLITS):
        mine = np.flatnonzero(splits_T == number)
        if not len(mine):
            continue
        mine = np.random.Generator(np.random.PCG64((task.config.seed, task.chunk.index, 0, number))).permutation(mine)
        picked = rows_T[mine]
        taken = Records(rows.view(pgn.ROW, np.ndarray)).take(picked)
        columns = pgn.select_columns(taken) | earlier_columns(earlier_RH, picked)
        columns["game"] = game_numbers(taken["game"], task.chunk.first_game)
        columns["root_value"] = told["root_value"][mine]
        table = packed_table(packed_of(taken), columns, task.config.planes)
        place = table.schema.get_field_index("visits")
        table = table.set_column(place, table.schema.field(place), told["visits"].take(number_array(mine)))
        name = f"{split}-{task.chunk.index:05d}-0.parquet"
        done = publish(Path(task.out) / BUILDING, name, len(mine), partial(write_rows, table))
        files.append({"name": name, "split": split, "rows": done.rows, "bytes": done.bytes, "sha256": done.sha256})
    return files
