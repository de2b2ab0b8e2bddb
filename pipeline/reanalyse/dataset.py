"""The journal of a finished reanalysis into a dataset.

    journal -> searches.jsonl; positions.parquet and the moves before -> rows, with what the search found -> shards -> manifest

A row is a person's position with ratings, clock and last move unknown; its label is the person's move. A position that was
searched after moves of the policy, or lies within a tree, belongs to no game (`plies` 0), and its label is the search's move.
Rows of a tree's interior have a value and no visits. `eval` stays what it was: an engine's word on the person's game.

Axes: N positions drawn, R rows of the dataset, P planes.
"""

import hashlib
import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from engine.board.movegen import legal_planes
from engine.board.position import COUNTERS, HALFMOVE_MASK, castling_bits, en_passant_file
from engine.encoding.planes import PLANES
from engine.search.chess_rules import play
from pipeline.dataset.files.columns import BATCH_SENTINELS
from pipeline.dataset.files.shard_files import open_shard
from pipeline.dataset.files.shards import (
    GAMES,
    Batch,
    number_array,
    publish,
    publish_json,
    rows_table,
    write_rows,
)
from pipeline.dataset.files.stored_planes import pack, to_positions
from pipeline.ingest.chunk import IngestConfig, part_name
from pipeline.ingest.manifest import build_manifest
from pipeline.reanalyse.config import ReanalyseConfig
from pipeline.reanalyse.draw import KEPT, POSITIONS
from pipeline.selfplay.dataset import clear, visits_column
from pipeline.selfplay.journal import FOLDER, Journals
from pipeline.storage.building import BUILDING, PARTS, begin, discard
from pipeline.storage.stores import opened

SEARCHES = "searches.jsonl"
"""A line for each position searched: what `pipeline.reanalyse.search` calls its thought."""
SHARD_ROWS = 1 << 16


@dataclass(frozen=True, slots=True)
class _Dump:
    """A dump that the searched positions come from, as the manifest of their dataset describes it."""

    entry: Mapping[str, Any]

    @property
    def name(self) -> str:
        """Return its name."""
        return str(self.entry["name"])

    @property
    def damage(self) -> str:
        """Return what was wrong with it."""
        return str(self.entry["damage"])

    def describe(self) -> Mapping[str, Any]:
        """Return the manifest's entry."""
        return self.entry


def build(
    out: Path, found: Journals, config: ReanalyseConfig, drawn: Mapping[str, Any], more: Mapping[str, Any]
) -> dict[str, Any]:
    """Make the dataset of a reanalysis whose searches are all in the journal, and return its manifest; the journal goes."""
    parts, files_at = out / PARTS, out / BUILDING
    discard(out)  # what this was made into before it was killed
    begin(out, {"positions": drawn["positions"]})
    groups = [found.places[number] for number in sorted(found.places)]

    def write_searches(target: Any) -> None:
        for group in groups:
            for thought in group.read()["thoughts"]:
                target.write(json.dumps(thought, allow_nan=False).encode() + b"\n")

    publish(files_at, SEARCHES, drawn["positions"], write_searches)
    asked = IngestConfig(planes="compact", seed=config.seed)
    files, rows, collisions = [], 0, 0
    for number, table in enumerate(_tables(out / FOLDER / POSITIONS, groups, config)):
        name = f"train-00000-{number}.parquet"
        done = publish(files_at, name, len(table), partial(write_rows, table))
        files.append({"name": name, "split": "train", "rows": done.rows, "bytes": done.bytes, "sha256": done.sha256})
        rows += len(table)
        collisions += int(np.isin(table["promotion"].to_numpy(), (2, 3, 4)).sum())
    games = pq.ParquetFile(opened(out / FOLDER / GAMES))
    publish(parts, "games-00000.parquet", games.metadata.num_rows, partial(_copied, out / FOLDER / GAMES))
    note = {
        "chunk": 0,
        "text_sha256": hashlib.sha256((files_at / SEARCHES).read_bytes()).hexdigest(),
        "games": games.metadata.num_rows,
        "status": {"used": games.metadata.num_rows},
        "rows": rows,
        "rows_dropped": {},
        "label_collisions": collisions,
        "files": files,
    }
    publish_json(parts, part_name(0), note)
    sources: Any = [_Dump(entry) for entry in drawn["sources"]]
    manifest = build_manifest(out, sources, asked, more)
    clear(out)
    return manifest


def _copied(path: Path, target: Any) -> None:
    with path.open("rb") as file:
        shutil.copyfileobj(file, target)


def _tables(positions: Path, groups: Sequence[Any], config: ReanalyseConfig) -> Iterator[pa.Table]:
    """Yield the tables of the shards, their rows shuffled."""
    with open_shard(positions) as reader:
        read = [reader.read(group, KEPT) for group in range(len(reader.groups))]
    drawn = {name: np.concatenate([part[name] for part in read]) for name in read[0]}
    boards = to_positions(pack(drawn["planes"], drawn))
    boards[:, COUNTERS] = drawn["halfmove"].astype(np.uint64) | drawn["ply"].astype(np.uint64) << np.uint64(16)
    waiting: list[dict[str, Any]] = []
    written = 0
    for group in groups:
        for thought in group.read()["thoughts"]:
            waiting += _rows_of(thought, drawn, boards)
        if len(waiting) >= SHARD_ROWS:
            yield _table(waiting, (config.seed, written))
            waiting, written = [], written + 1
    if waiting:
        yield _table(waiting, (config.seed, written))


def _rows_of(thought: Mapping[str, Any], drawn: Batch, boards: NDArray[np.uint64]) -> Iterator[dict[str, Any]]:
    """Yield the rows of one position: its own, and those of its tree's interior."""
    if "value" not in thought:
        return
    number = thought["row"]
    moves = [tuple(move) for move in thought["moves"]]
    own = {name: drawn[name][number] for name in KEPT} if not moves else _after(drawn, boards, number, moves)
    if moves:
        own |= {"label": thought["best"][0], "promotion": thought["best"][1]}
    yield own | {
        "visits": (thought["labels"], thought["shares"]),
        "root_value": thought["value"],
        "best_value": thought["best_value"],
        "simulations": thought["simulations"],
    }
    for node in thought.get("nodes", ()):
        inner = _after(drawn, boards, number, [*moves, *map(tuple, node["path"])])
        inner |= {"label": node["best"][0], "promotion": node["best"][1]}
        value = {"root_value": node["value"], "best_value": np.nan, "simulations": node["visits"]}
        yield inner | {"visits": None} | value


def _after(drawn: Batch, boards: NDArray[np.uint64], number: int, moves: Sequence[Any]) -> dict[str, Any]:
    """Return what is known of a drawn position after some moves (label, promotion), which belongs to no game's end."""
    position = boards[number].copy()
    for label, promotion in moves:
        play(position, label, promotion)
    planes = np.zeros(PLANES, dtype=np.uint64)
    legal_planes(position, planes)
    return {
        "planes": planes,
        "castling": int(castling_bits(position)),
        "ep_file": int(en_passant_file(position)),
        "halfmove": min(int(position[COUNTERS] & HALFMOVE_MASK), 255),
        "repetition": 0,
        "result": 0,
        "eval": BATCH_SENTINELS["eval"],
        "ply": int(drawn["ply"][number]) + len(moves),
        "plies": 0,
        "game": drawn["game"][number],
    }


def _table(rows: Sequence[Mapping[str, Any]], seed: tuple[int, int]) -> pa.Table:
    """Return rows as the table of a shard, shuffled."""
    order = np.random.Generator(np.random.PCG64(seed)).permutation(len(rows))
    rows = [rows[at] for at in order]
    names = [*(name for name in KEPT if name != "planes"), "root_value", "best_value", "simulations"]
    columns = {name: np.array([row[name] for row in rows]) for name in names}
    for name in ("last_move", "clock", "elo", "opponent_elo", "base", "increment"):
        columns[name] = np.full(len(rows), BATCH_SENTINELS[name])
    for name in ("root_value", "best_value"):
        columns[name] = columns[name].astype(np.float32)
    table = rows_table(np.stack([row["planes"] for row in rows]), columns, "compact")
    place = table.schema.get_field_index("best_value")
    best = number_array(columns["best_value"], ~np.isnan(columns["best_value"]))
    table = table.set_column(place, table.schema.field(place), best)
    place = table.schema.get_field_index("visits")
    return table.set_column(place, table.schema.field(place), visits_column([row["visits"] for row in rows]))
