"""Draw the positions to search from datasets, and store them as a shard.

    train splits --weighted draw--> best of each game and phase --shares of phases-->
    [one to four random moves] --> positions.parquet, games.parquet

Some positions are a few random moves away from human games. Searches visit such positions, but
games rarely contain them, so a value trained only on games has never seen them.

Random numbers are hashes of game, ply and seed. So the draw does not depend on the form in which
the dataset stores its planes. A weighted draw without replacement takes the rows with the smallest
-log(u) / weight (Efraimidis and Spirakis 2006). Memory grows with the number of games, not of
positions.

Axes: R rows of a group, C candidates, N positions drawn, G games drawn.
"""

import json
import logging
import math
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import chess
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from engine.board.position import castling_bits, en_passant_file, from_board, to_board
from engine.encoding.planes import PLANES, planes_of
from engine.encoding.views import LAST_MOVES, NO_LABEL
from engine.progress import Progress, Stop, Tick
from pipeline.dataset.dataset import Dataset, Shard
from pipeline.dataset.files.columns import BATCH_SENTINELS, GAMES
from pipeline.dataset.files.games import GAMES_COLUMNS
from pipeline.dataset.files.shards import Batch, make_rows_table, open_shard, write_rows
from pipeline.dataset.files.stored_planes import pack_planes, row_positions
from pipeline.dataset.hashing import splitmix64, to_unit_interval
from pipeline.dataset.position_keys import hash_positions
from pipeline.errors import Stopped
from pipeline.selfplay.config import ExploreConfig, ExploreError
from pipeline.storage.stores import publish, publish_json

LOG = logging.getLogger(__name__)

POSITIONS, DRAWN = "positions.parquet", "drawn.json"
SCANNED_COLUMNS = ("planes", "castling", "game", "ply", "eval")
"""Columns read to draw positions."""
COPIED_COLUMNS = (
    "planes", "castling", "ep_file", "halfmove", "repetition", "label", "promotion", "result",
    "eval", "ply", "plies", "game",
)  # fmt: skip
"""Columns that a searched row copies from its position."""
CONTEXT_COLUMNS = (*LAST_MOVES, "clock", "elo", "opponent_elo", "base", "increment")
"""Further columns of a human position; null for positions after random moves. Searches do not read
them."""
PHASES = {"opening": 0.2, "middlegame": 0.5, "endgame": 0.3}
"""Share of each phase among the drawn positions."""
FIRST_PLY = 6
"""First ply of a game from which positions are drawn."""
OPENING_PLIES = 20
ENDGAME_PIECES = 6
DECIDED_CENTIPAWNS, DECIDED_WEIGHT = 300, 0.25
"""Engine evaluation in centipawns from which a position counts as decided, and the weight of
decided positions; all others have weight 1."""
MAX_CANDIDATES = 1 << 22
"""Number of candidates in memory at which all but the best of each game and phase are discarded."""

MAX_RANDOM_MOVES = 4
"""Maximum number of random moves between a position of a game and the searched position."""
BLOCK = 4096
"""Rows converted to boards at a time: a python-chess board takes two kilobytes."""
_CANDIDATE_DTYPE = np.dtype(
    [("game", "u8"), ("key", "u8"), ("draw", "f8"), ("shard", "i4"), ("group", "i4"),
     ("row", "i4"), ("phase", "u1")]
)  # fmt: skip
"""A candidate: `game` is dataset << 32 | game, `key` the position's hash, `draw` its random number
(smallest first). Shard, row group and row locate it."""


def classify_phases(ply_R: NDArray[Any], planes_RP: NDArray[np.uint64]) -> NDArray[np.uint8]:
    """Return the index into PHASES, by the number of knights to queens, then by ply; uint8[R]."""
    pieces_R = np.bitwise_count(planes_RP[:, 2:10]).sum(axis=1)
    early_R = np.where(ply_R < OPENING_PLIES, 0, 1)
    return np.where(pieces_R <= ENDGAME_PIECES, 2, early_R).astype(np.uint8)


def draw_positions(
    datasets: Sequence[Path],
    config: ExploreConfig,
    folder: Path,
    progress: Progress,
    stop: Stop,
    *,
    exact_count: bool,
) -> dict[str, Any]:
    """Draw positions into `folder`, unless done before; return the contents of `drawn.json`.

    Raises ExploreError if no position can be drawn or, with `exact_count`, fewer than
    `config.count`. Raises DatasetError for a folder that is not a dataset, and Stopped.
    """
    if (folder / DRAWN).exists():
        drawn: dict[str, Any] = json.loads((folder / DRAWN).read_bytes())
        return drawn
    opened = (Dataset.open(directory, progress, stop) for directory in datasets)
    used = [part for dataset in opened for part in dataset.parts if part.has_rows("train")]
    shards = [
        (number, shard) for number, part in enumerate(used) for shard in part.list_shards("train")
    ]
    chosen = _draw(used, shards, config, progress, stop)
    # if there are too few positions, several random walks start from the same one
    if config.source == "near" and len(chosen):
        chosen = chosen[np.arange(config.count) % len(chosen)]
    if len(chosen) < config.count:
        named = ", ".join(map(str, datasets))
        if not len(chosen):
            raise ExploreError(
                f"no position to search in the train split of {named} from half-move {FIRST_PLY} "
                "on: add a dataset with longer games"
            )
        there = (
            f"count is {config.count:,}, but the train split of {named} has only {len(chosen):,} "
            f"distinct positions from half-move {FIRST_PLY} on"
        )
        if exact_count:
            raise ExploreError(f"{there}: choose a smaller count")
        LOG.warning("%s; all of them are searched", there)
    rows = _read_rows(chosen, [shard for _, shard in shards])
    games, rows["game"] = np.unique(chosen["game"], return_inverse=True)
    rows["game"] = rows["game"].astype(np.uint32)
    if config.source == "near":
        play_random_moves(rows, config.seed, progress, stop)
        rows |= {name: np.full(len(chosen), BATCH_SENTINELS[name]) for name in CONTEXT_COLUMNS}
    table = make_rows_table(pack_planes(rows.pop("planes"), rows), rows, "compact")
    games_table, sources = _read_games(games, used)
    write_games = partial(pq.write_table, games_table, compression="zstd")
    publish(folder, GAMES, len(games), write_games)
    publish(folder, POSITIONS, len(chosen), partial(write_rows, table))
    counts = np.bincount(chosen["phase"], minlength=len(PHASES)).tolist()
    drawn = {
        "positions": len(chosen),
        "phases": dict(zip(PHASES, counts, strict=True)),
        "sources": sources,
    }
    publish_json(folder, DRAWN, drawn)  # last: it marks the draw as complete
    return drawn


def read_drawn(path: Path) -> tuple[NDArray[np.uint64], dict[str, NDArray[Any]]]:
    """Return the positions that `draw` wrote, uint64[N, W], and their other columns."""
    names = (*COPIED_COLUMNS, *CONTEXT_COLUMNS)
    with open_shard(path) as reader:
        groups = [reader.read(at, names, packed=True) for at in range(len(reader.groups))]
    columns = {name: np.concatenate([group[name] for group in groups]) for name in names}
    return columns.pop("planes"), columns


def identify_datasets(datasets: Sequence[Path]) -> list[dict[str, str]]:
    """Return each dataset's name, manifest hash and held-out part; raises DatasetError."""
    return [
        {"name": part.name, "manifest_sha256": part.identity, "held_out": part.held_out}
        for directory in datasets
        for part in Dataset.open(directory).parts
    ]


def _draw(
    used: Sequence[Dataset],
    shards: Sequence[tuple[int, Shard]],
    config: ExploreConfig,
    progress: Progress,
    stop: Stop,
) -> NDArray[Any]:
    """Return the drawn candidates, with as few per game as suffice, since these are correlated."""
    games = 0.0
    for dataset in used:
        positions = dataset.manifest["positions"]
        games += dataset.manifest["games"]["used"] * positions["train"] / max(positions["total"], 1)
    per_game, before = max(1, math.ceil(config.count / max(games, 1.0))), -1
    while True:
        candidates = _candidates(shards, per_game, config.seed, progress, stop)
        chosen = _choose(candidates, config.count, per_game, config.seed)
        if len(chosen) in (config.count, before):
            return chosen
        before, per_game = len(chosen), 2 * per_game


def _candidates(
    shards: Sequence[tuple[int, Shard]], per_game: int, seed: int, progress: Progress, stop: Stop
) -> NDArray[Any]:
    """Return the best `per_game` candidates of each game and phase."""
    parts: list[NDArray[Any]] = []
    have = done = 0
    total = sum(shard.rows for _, shard in shards)
    for number, (member, shard) in enumerate(shards):
        with shard.open() as reader:
            for group in range(len(reader.groups)):
                if stop():
                    raise Stopped(
                        "stopped while positions were drawn; run the same command to start over"
                    )
                rows = reader.read(group, SCANNED_COLUMNS, shard.games)
                parts.append(_score(rows, number, group, member, seed))
                have += len(parts[-1])
                done += len(rows["ply"])
                progress(Tick(done, total, "positions read", {}))
                if have > MAX_CANDIDATES:
                    parts = [_select_best(np.concatenate(parts), per_game)]
                    have = len(parts[0])
    return (
        _select_best(np.concatenate(parts), per_game)
        if parts
        else np.empty(0, dtype=_CANDIDATE_DTYPE)
    )


def _score(rows: Batch, shard: int, group: int, member: int, seed: int) -> NDArray[Any]:
    late_R = np.flatnonzero(rows["ply"] >= FIRST_PLY)
    found = np.empty(len(late_R), dtype=_CANDIDATE_DTYPE)
    found["shard"], found["group"], found["row"] = shard, group, late_R
    found["game"] = rows["game"][late_R].astype(np.uint64) | np.uint64(member << 32)
    planes, evals = rows["planes"][late_R], rows["eval"][late_R].astype(np.int32)
    found["key"] = hash_positions(planes, rows["castling"][late_R])
    found["phase"] = classify_phases(rows["ply"][late_R], planes)
    words = splitmix64(found["game"], seed) ^ rows["ply"][late_R].astype(np.uint64)
    decided_C = (evals != BATCH_SENTINELS["eval"]) & (np.abs(evals) >= DECIDED_CENTIPAWNS)
    weight_C = np.where(decided_C, DECIDED_WEIGHT, 1.0)
    found["draw"] = -np.log1p(-to_unit_interval(splitmix64(words, seed))) / weight_C
    return found


def _select_best(found: NDArray[Any], count: int) -> NDArray[Any]:
    """Return the `count` candidates of each game and phase with the smallest draws."""
    group_C = found["game"] * np.uint64(len(PHASES)) + found["phase"]
    order = np.lexsort((found["draw"], group_C))
    return found[order[rank_in_group(group_C[order]) < count]]


def rank_in_group(sorted_C: NDArray[Any]) -> NDArray[np.int64]:
    """Return each element's index within its run of equal elements in a sorted array."""
    first_C = np.r_[True, sorted_C[1:] != sorted_C[:-1]]
    begins = np.flatnonzero(first_C)
    rank_C: NDArray[np.int64] = np.arange(len(sorted_C)) - np.repeat(
        begins, np.diff(np.r_[begins, len(sorted_C)])
    )
    return rank_C


def _choose(found: NDArray[Any], count: int, per_game: int, seed: int) -> NDArray[Any]:
    """Return up to `count` distinct positions in random order, up to `per_game` from each game."""
    shares = np.array(list(PHASES.values()))
    phase_C = splitmix64(
        splitmix64(found["game"], seed + 1) ^ found["phase"].astype(np.uint64), seed
    )
    # one phase per game, with probabilities in proportion to the shares
    drawn_C = -np.log1p(-to_unit_interval(phase_C)) / shares[found["phase"]]
    order = np.lexsort((found["draw"], drawn_C, found["game"]))
    found = found[order[rank_in_group(found["game"][order]) < per_game]]
    found = found[
        np.argsort(splitmix64(found["key"] ^ splitmix64(found["game"]), seed), kind="stable")
    ]
    found = found[np.sort(np.unique(found["key"], return_index=True)[1])]
    first_C = np.zeros(len(found), dtype=np.bool_)
    for phase, most in enumerate(np.floor(shares * count).astype(np.int64)):
        first_C[np.flatnonzero(found["phase"] == phase)[:most]] = True
    taken = np.flatnonzero(first_C)
    # fill up if a phase has too few positions or shares were rounded down
    rest = np.flatnonzero(~first_C)[: count - len(taken)]
    chosen: NDArray[Any] = found[np.sort(np.r_[taken, rest])]
    return chosen


def _read_rows(chosen: NDArray[Any], shards: Sequence[Shard]) -> dict[str, NDArray[Any]]:
    rows: dict[str, NDArray[Any]] = {}
    order = np.lexsort((chosen["group"], chosen["shard"]))
    place_N = np.stack((chosen["shard"], chosen["group"]), axis=1)[order]
    begins = np.flatnonzero(np.r_[True, (place_N[1:] != place_N[:-1]).any(axis=1)])
    for begin, end in zip(begins, [*begins[1:], len(order)], strict=True):
        mine = order[begin:end]
        shard = shards[int(place_N[begin, 0])]
        with shard.open() as reader:
            read = reader.read(
                int(place_N[begin, 1]), (*COPIED_COLUMNS, *CONTEXT_COLUMNS), shard.games
            )
        for name, values in read.items():
            if name not in rows:
                rows[name] = np.empty(
                    (len(chosen), PLANES) if name == "planes" else len(chosen), dtype=values.dtype
                )
            rows[name][mine] = values[chosen["row"][mine]]
    return rows


def _read_games(
    games_G: NDArray[np.uint64], used: Sequence[Dataset]
) -> tuple[pa.Table, list[Mapping[str, Any]]]:
    """Return the rows of the games in the games tables, and the sources they refer to."""
    sources: list[Mapping[str, Any]] = []
    parts = []
    for number, dataset in enumerate(used):
        mine = (games_G[games_G >> np.uint64(32) == number] & np.uint64(0xFFFF_FFFF)).astype(
            np.int64
        )
        for first, table in dataset.read_games(tuple(GAMES_COLUMNS)):
            here = mine[(mine >= first) & (mine < first + len(table))] - first
            part = table.take(pa.array(here))
            moved = pa.array(part["source"].to_numpy() + len(sources), pa.uint16())
            parts.append(part.set_column(part.schema.get_field_index("source"), "source", moved))
        sources += dataset.manifest["sources"]
    return pa.concat_tables(parts).combine_chunks(), sources


def play_random_moves(
    rows: dict[str, NDArray[Any]], seed: int, progress: Progress, stop: Stop
) -> None:
    """Play one to MAX_RANDOM_MOVES random legal moves in each row, in place.

    A move that would end the game is not played. The rows then belong to no game: they have no
    label, evaluation or result, and `plies` is 0. Raises Stopped.
    """
    rng, count = np.random.Generator(np.random.PCG64(seed)), len(rows["ply"])
    for first in range(0, count, BLOCK):
        if stop():
            raise Stopped(
                "stopped while random moves were played; run the same command to start over"
            )
        part = {name: column[first : first + BLOCK] for name, column in rows.items()}
        boards = [to_board(position) for position in row_positions(part)]
        part["ply"] += np.array([_play_moves(board, rng) for board in boards], part["ply"].dtype)
        part["planes"][:] = planes_of(boards)
        part["halfmove"][:] = [board.halfmove_clock for board in boards]
        positions = [from_board(board) for board in boards]
        part["castling"][:] = [int(castling_bits(position)) for position in positions]
        part["ep_file"][:] = [int(en_passant_file(position)) for position in positions]
        progress(Tick(min(first + BLOCK, count), count, "positions moved"))
    rows["label"][:] = NO_LABEL
    rows["eval"][:] = BATCH_SENTINELS["eval"]
    for name in ("plies", "promotion", "repetition", "result"):
        rows[name][:] = 0


def _play_moves(board: chess.Board, rng: np.random.Generator) -> int:
    for played in range(int(rng.integers(1, MAX_RANDOM_MOVES, endpoint=True))):
        moves = list(board.legal_moves)
        board.push(moves[rng.integers(len(moves))])
        if board.is_checkmate() or board.is_stalemate() or board.is_insufficient_material():
            board.pop()
            return played
    return played + 1
