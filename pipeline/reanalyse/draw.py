"""Which positions of datasets are searched: some of each game, by phase, undecided ones first; kept as a shard of their own.

    train splits --weights, chances--> the best of each game and phase --shares of phases--> positions.parquet, games.parquet

A position's chance is a hash of its game, its ply and the seed, so the same positions are drawn from a dataset in either form.
Weighted draws without replacement are those of Efraimidis and Spirakis (2006): the least of -log(u) / weight. Memory grows
with the number of games, not of positions.

Axes: R rows of a group, C candidates, N positions drawn, G games drawn.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from engine.encoding.planes import PLANES
from engine.progress import Progress, Stop, Tick
from pipeline.dataset.files.columns import BATCH_SENTINELS
from pipeline.dataset.files.shard_files import GAMES_COLUMNS, games_tables, open_shard
from pipeline.dataset.files.shards import (
    GAMES,
    MANIFEST,
    Batch,
    file_hash,
    publish,
    publish_json,
    rows_table,
    write_rows,
)
from pipeline.dataset.hashing import splitmix64, unit_interval
from pipeline.dataset.position_keys import position_keys
from pipeline.dataset.training_set import Member, Shard, members
from pipeline.errors import Stopped
from pipeline.reanalyse.config import PHASES, ReanalyseConfig, ReanalyseError

POSITIONS, DRAWN = "positions.parquet", "drawn.json"
SCANNED = ("planes", "castling", "game", "ply", "eval")
"""Columns that positions are drawn by."""
KEPT = (
    "planes", "castling", "ep_file", "halfmove", "repetition", "label", "promotion", "result", "eval", "ply", "plies", "game"
)  # fmt: skip
"""Columns of a position that a row of its search takes over: nobody's ratings, clocks or last move."""
OPENING_PLIES = 20
ENDGAME_PIECES = 6
DECIDED = 300
"""Centipawns of an engine's evaluation from which a position counts as decided."""
MOST_CANDIDATES = 1 << 22
"""Candidates that are gathered before all but the best of each game and phase are dropped."""

_CANDIDATE = np.dtype(
    [("game", "u8"), ("key", "u8"), ("chance", "f8"), ("shard", "i4"), ("group", "i4"), ("row", "i4"), ("phase", "u1")]
)
"""A candidate: dataset << 32 | game, key of the position, what the least of is taken, and where it lies."""


@dataclass(frozen=True, slots=True)
class _Place:
    """A shard of a dataset."""

    member: int
    shard: Shard


def phase_of(ply_R: NDArray[Any], planes_RP: NDArray[np.uint64]) -> NDArray[np.uint8]:
    """Return the index into PHASES: endgames have ENDGAME_PIECES or fewer beside kings and pawns, openings few half-moves."""
    pieces_R = np.bitwise_count(planes_RP[:, 2:10]).sum(axis=1)
    early_R = np.where(ply_R < OPENING_PLIES, 0, 1)
    return np.where(pieces_R <= ENDGAME_PIECES, 2, early_R).astype(np.uint8)


def draw(
    positions: Sequence[Path], config: ReanalyseConfig, folder: Path, progress: Progress, stop: Stop
) -> dict[str, Any]:
    """Draw positions into `folder` and return what `drawn.json` says of them; nothing is done where that is there.

    Raises ReanalyseError where there are none, DatasetError for what is no dataset, Stopped.
    """
    if (folder / DRAWN).exists():
        found: dict[str, Any] = json.loads((folder / DRAWN).read_bytes())
        return found
    used = [member for directory in positions for member in members(directory, progress, stop) if not member.held_out]
    places = [_Place(number, shard) for number, member in enumerate(used) for shard in member.shards("train")]
    candidates = _candidates(places, config, progress, stop)
    if not len(candidates):
        named = ", ".join(map(str, positions))
        raise ReanalyseError(
            f"no position to search in the train split of {named} from half-move {config.first_ply} on"
        )
    chosen = _chosen(candidates, config)
    rows = _rows_of(chosen, places)
    games, rows["game"] = np.unique(chosen["game"], return_inverse=True)
    rows["game"] = rows["game"].astype(np.uint32)
    table = rows_table(rows.pop("planes"), rows | _unknown(len(chosen)), "compact")
    games_table, sources = _games(games, used)
    publish(folder, GAMES, len(games), lambda target: pq.write_table(games_table, target, compression="zstd"))
    publish(folder, POSITIONS, len(chosen), lambda target: write_rows(table, target))
    counts = np.bincount(chosen["phase"], minlength=len(PHASES)).tolist()
    told = {
        "positions": len(chosen),
        "games": len(games),
        "phases": dict(zip(PHASES, counts, strict=True)),
        "sources": sources,
    }
    publish_json(folder, DRAWN, told)  # last: without it all is drawn anew
    return told


def datasets_row(positions: Sequence[Path]) -> list[dict[str, str]]:
    """Return what tells the datasets apart, for the identity of a reanalysis; raises DatasetError."""
    return [
        {"name": member.directory.resolve().name, "manifest_sha256": file_hash(member.directory / MANIFEST)}
        for directory in positions
        for member in members(directory)
    ]


def _candidates(places: Sequence[_Place], config: ReanalyseConfig, progress: Progress, stop: Stop) -> NDArray[Any]:
    """Return the best `a_game` candidates of each game and phase, by their chances."""
    parts: list[NDArray[Any]] = []
    have = done = 0
    total = sum(place.shard.rows for place in places)
    for number, place in enumerate(places):
        with open_shard(place.shard.path, place.shard.rows) as reader:
            for group in range(len(reader.groups)):
                if stop():
                    raise Stopped("stopped while positions were drawn; run the same command to begin anew")
                rows = reader.read(group, SCANNED, place.shard.games)
                parts.append(_scored(rows, number, group, place.member, config))
                have += len(parts[-1])
                done += len(rows["ply"])
                progress(Tick(done, total, "positions read", {}))
                if have > MOST_CANDIDATES:
                    parts = [_best(np.concatenate(parts), config.a_game)]
                    have = len(parts[0])
    return _best(np.concatenate(parts), config.a_game) if parts else np.empty(0, dtype=_CANDIDATE)


def _scored(rows: Batch, shard: int, group: int, member: int, config: ReanalyseConfig) -> NDArray[Any]:
    """Return the candidates of a row group."""
    late_R = np.flatnonzero(rows["ply"] >= config.first_ply)
    found = np.empty(len(late_R), dtype=_CANDIDATE)
    found["shard"], found["group"], found["row"] = shard, group, late_R
    found["game"] = rows["game"][late_R].astype(np.uint64) | np.uint64(member << 32)
    planes, evals = rows["planes"][late_R], rows["eval"][late_R].astype(np.int32)
    found["key"] = position_keys(planes, rows["castling"][late_R])
    found["phase"] = phase_of(rows["ply"][late_R], planes)
    words = splitmix64(found["game"], config.seed) ^ rows["ply"][late_R].astype(np.uint64)
    decided_C = (evals != BATCH_SENTINELS["eval"]) & (np.abs(evals) >= DECIDED)
    weight_C = np.where(decided_C, max(config.decided, 1e-9), 1.0)
    found["chance"] = -np.log1p(-unit_interval(splitmix64(words, config.seed))) / weight_C
    return found


def _best(found: NDArray[Any], count: int) -> NDArray[Any]:
    """Return the `count` candidates with the least chances of each game and phase."""
    of = found["game"] * np.uint64(len(PHASES)) + found["phase"]
    order = np.lexsort((found["chance"], of))
    return found[order[_rank(of[order]) < count]]


def _rank(sorted_C: NDArray[Any]) -> NDArray[np.int64]:
    """Return the place of each among its equals, of a sorted array."""
    first_C = np.r_[True, sorted_C[1:] != sorted_C[:-1]]
    begins = np.flatnonzero(first_C)
    rank_C: NDArray[np.int64] = np.arange(len(sorted_C)) - np.repeat(begins, np.diff(np.r_[begins, len(sorted_C)]))
    return rank_C


def _chosen(found: NDArray[Any], config: ReanalyseConfig) -> NDArray[Any]:
    """Return the positions that are searched, in an order by chance: of each game as many as may be, no position twice."""
    weights = np.array(config.phases) / sum(config.phases)
    stir_C = splitmix64(splitmix64(found["game"], config.seed + 1) ^ found["phase"].astype(np.uint64), config.seed)
    with np.errstate(divide="ignore"):
        drawn_C = -np.log1p(-unit_interval(stir_C)) / weights[found["phase"]]  # of a game's phases, by their weights
    found, drawn_C = found[np.isfinite(drawn_C)], drawn_C[np.isfinite(drawn_C)]
    order = np.lexsort((found["chance"], drawn_C, found["game"]))
    found = found[order[_rank(found["game"][order]) < config.a_game]]
    found = found[np.argsort(splitmix64(found["key"] ^ splitmix64(found["game"]), config.seed), kind="stable")]
    found = found[np.sort(np.unique(found["key"], return_index=True)[1])]
    wanted = np.floor(weights * config.count).astype(np.int64)
    first_C = np.zeros(len(found), dtype=np.bool_)
    for phase, most in enumerate(wanted):
        first_C[np.flatnonzero(found["phase"] == phase)[:most]] = True
    taken = np.flatnonzero(first_C)
    rest = np.flatnonzero(~first_C)[: config.count - len(taken)]  # where a phase has too few, and what rounding left
    chosen: NDArray[Any] = found[np.sort(np.r_[taken, rest])]
    return chosen


def _rows_of(chosen: NDArray[Any], places: Sequence[_Place]) -> dict[str, NDArray[Any]]:
    """Read the rows of the positions, in their order."""
    rows: dict[str, NDArray[Any]] = {}
    order = np.lexsort((chosen["group"], chosen["shard"]))
    of = np.stack((chosen["shard"], chosen["group"]), axis=1)[order]
    begins = np.flatnonzero(np.r_[True, (of[1:] != of[:-1]).any(axis=1)])
    for begin, end in zip(begins, [*begins[1:], len(order)], strict=True):
        mine = order[begin:end]
        shard = places[int(of[begin, 0])].shard
        with open_shard(shard.path, shard.rows) as reader:
            read = reader.read(int(of[begin, 1]), KEPT, shard.games)
        for name, values in read.items():
            if name not in rows:
                rows[name] = np.empty((len(chosen), PLANES) if name == "planes" else len(chosen), dtype=values.dtype)
            rows[name][mine] = values[chosen["row"][mine]]
    return rows


def _unknown(count: int) -> dict[str, NDArray[Any]]:
    """Return the columns that a search is not told, as unknown."""
    names = ("last_move", "clock", "elo", "opponent_elo", "base", "increment")
    return {name: np.full(count, BATCH_SENTINELS[name]) for name in names}


def _games(games_G: NDArray[np.uint64], used: Sequence[Member]) -> tuple[pa.Table, list[Mapping[str, Any]]]:
    """Return the rows of the games' tables of these games, and the dumps that their column `source` counts."""
    sources: list[Mapping[str, Any]] = []
    parts = []
    for number, member in enumerate(used):
        mine = (games_G[games_G >> np.uint64(32) == number] & np.uint64(0xFFFF_FFFF)).astype(np.int64)
        for first, table in games_tables(member.directory, member.manifest, tuple(GAMES_COLUMNS)):
            here = mine[(mine >= first) & (mine < first + len(table))] - first
            part = table.take(pa.array(here))
            moved = pa.array(part["source"].to_numpy() + len(sources), pa.uint16())
            parts.append(part.set_column(part.schema.get_field_index("source"), "source", moved))
        sources += member.manifest["sources"]
    return pa.concat_tables(parts).combine_chunks(), sources
