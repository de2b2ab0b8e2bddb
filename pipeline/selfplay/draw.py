"""Draw the positions of datasets that are searched, and store them as a shard.

    train splits --weighted draw--> best of each game and phase --shares of phases-->
    [one to four random moves] --> positions.parquet, games.parquet

Positions a few random moves away from human games are drawn too, because searches visit such
positions and games rarely contain them: a value that learned from games alone has not seen them.

Random numbers are hashes of game, ply and seed. So the same positions are drawn from a dataset in
either form. Weighted draws without replacement take the least -log(u) / weight (Efraimidis and
Spirakis 2006). Memory grows with the number of games, not of positions.

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
from engine.progress import Progress, Stop, Tick, never, silent
from pipeline.dataset.dataset import Dataset, Shard
from pipeline.dataset.files.columns import BATCH_SENTINELS, GAMES
from pipeline.dataset.files.games import GAMES_COLUMNS
from pipeline.dataset.files.shards import Batch, open_shard, rows_table, write_rows
from pipeline.dataset.files.stored_planes import pack, row_positions
from pipeline.dataset.hashing import splitmix64, unit_interval
from pipeline.dataset.position_keys import position_keys
from pipeline.errors import Stopped
from pipeline.selfplay.config import ExploreConfig, ExploreError
from pipeline.storage.stores import publish, publish_json

LOG = logging.getLogger(__name__)

POSITIONS, DRAWN = "positions.parquet", "drawn.json"
SCANNED = ("planes", "castling", "game", "ply", "eval")
"""Columns that positions are drawn by."""
KEPT = (
    "planes", "castling", "ep_file", "halfmove", "repetition", "label", "promotion", "result",
    "eval", "ply", "plies", "game",
)  # fmt: skip
"""Columns that a searched row takes from its position."""
CONTEXT = (*LAST_MOVES, "clock", "elo", "opponent_elo", "base", "increment")
"""Further columns of a person's position; null a few moves off it. Searches of positions read none
of them."""
PHASES = {"opening": 0.2, "middlegame": 0.5, "endgame": 0.3}
"""Shares of the phases among the drawn positions."""
FIRST_PLY = 6
"""Half-moves of a game before its first position that may be drawn."""
OPENING_PLIES = 20
ENDGAME_PIECES = 6
DECIDED, DECIDED_WEIGHT = 300, 0.25
"""Centipawns of an engine's evaluation from which a position counts as decided, and its weight
beside 1 of any other."""
MOST_CANDIDATES = 1 << 22
"""Candidates that are gathered before all but the best of each game and phase are dropped."""

MOST_MOVES = 4
"""Maximum number of moves between a position of a game and the one that is searched."""
BLOCK = 4096
"""Rows whose boards are in memory together: a python-chess board takes two kilobytes."""
_CANDIDATE = np.dtype(
    [("game", "u8"), ("key", "u8"), ("draw", "f8"), ("shard", "i4"), ("group", "i4"),
     ("row", "i4"), ("phase", "u1")]
)  # fmt: skip
"""A candidate: dataset << 32 | game, key of the position, its draw (the least is taken), and its
place."""


def phase_of(ply_R: NDArray[Any], planes_RP: NDArray[np.uint64]) -> NDArray[np.uint8]:
    """Return the index into PHASES, by pieces beside kings and pawns, then by ply."""
    pieces_R = np.bitwise_count(planes_RP[:, 2:10]).sum(axis=1)
    early_R = np.where(ply_R < OPENING_PLIES, 0, 1)
    return np.where(pieces_R <= ENDGAME_PIECES, 2, early_R).astype(np.uint8)


def draw(
    datasets: Sequence[Path],
    config: ExploreConfig,
    folder: Path,
    progress: Progress,
    stop: Stop,
    *,
    exact_count: bool,
) -> dict[str, Any]:
    """Draw positions into `folder` once, and return the contents of `drawn.json`.

    Raises ExploreError where no position can be drawn, or with `exact_count` fewer than
    `config.count`. Raises DatasetError for a folder that is no dataset, and Stopped.
    """
    if (folder / DRAWN).exists():
        drawn: dict[str, Any] = json.loads((folder / DRAWN).read_bytes())
        return drawn
    opened = (Dataset.open(directory, progress, stop) for directory in datasets)
    used = [part for dataset in opened for part in dataset.parts if part.has("train")]
    shards = [(number, shard) for number, part in enumerate(used) for shard in part.shards("train")]
    chosen = _draw(shards, _per_game(used, config.count), config, progress, stop)
    # several walks begin at a position where there are too few
    if config.source == "near" and len(chosen):
        chosen = chosen[np.arange(config.count) % len(chosen)]
    if len(chosen) < config.count:
        named = ", ".join(map(str, datasets))
        if not len(chosen):
            raise ExploreError(
                f"no position to search in the train split of {named} from half-move {FIRST_PLY} on"
            )
        there = (
            f"count is {config.count:,}, and the train split of {named} has {len(chosen):,} "
            f"different positions from half-move {FIRST_PLY} on"
        )
        if exact_count:
            raise ExploreError(f"{there}: ask for that many at most")
        LOG.warning("%s, which are all searched", there)
    rows = _read_rows(chosen, [shard for _, shard in shards])
    games, rows["game"] = np.unique(chosen["game"], return_inverse=True)
    rows["game"] = rows["game"].astype(np.uint32)
    if config.source == "near":
        step_off(rows, config.seed, progress, stop)
        rows |= {name: np.full(len(chosen), BATCH_SENTINELS[name]) for name in CONTEXT}
    table = rows_table(pack(rows.pop("planes"), rows), rows, "compact")
    games_table, sources = _games(games, used)
    write_games = partial(pq.write_table, games_table, compression="zstd")
    publish(folder, GAMES, len(games), write_games)
    publish(folder, POSITIONS, len(chosen), partial(write_rows, table))
    counts = np.bincount(chosen["phase"], minlength=len(PHASES)).tolist()
    drawn = {
        "positions": len(chosen),
        "phases": dict(zip(PHASES, counts, strict=True)),
        "sources": sources,
    }
    publish_json(folder, DRAWN, drawn)  # last: without it everything is drawn again
    return drawn


def read_drawn(path: Path) -> tuple[NDArray[np.uint64], dict[str, NDArray[Any]]]:
    """Return the positions that `draw` wrote, uint64[N, W], and their other columns."""
    names = (*KEPT, *CONTEXT)
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
    shards: Sequence[tuple[int, Shard]],
    per_game: int,
    config: ExploreConfig,
    progress: Progress,
    stop: Stop,
) -> NDArray[Any]:
    """Return the drawn candidates; `per_game` grows while there are too few."""
    before = -1
    while True:
        candidates = _candidates(shards, per_game, config.seed, progress, stop)
        chosen = _choose(candidates, config.count, per_game, config.seed)
        if len(chosen) in (config.count, before):
            return chosen
        before, per_game = len(chosen), 2 * per_game


def _per_game(used: Sequence[Dataset], count: int) -> int:
    """Return the fewest positions per game that suffice; those of one game are correlated."""
    games = 0.0
    for dataset in used:
        positions = dataset.page["positions"]
        games += dataset.page["games"]["used"] * positions["train"] / max(positions["total"], 1)
    return max(1, math.ceil(count / max(games, 1.0)))


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
                        "stopped while positions were drawn; run the same command to begin anew"
                    )
                rows = reader.read(group, SCANNED, shard.games)
                parts.append(_score(rows, number, group, member, seed))
                have += len(parts[-1])
                done += len(rows["ply"])
                progress(Tick(done, total, "positions read", {}))
                if have > MOST_CANDIDATES:
                    parts = [_best(np.concatenate(parts), per_game)]
                    have = len(parts[0])
    return _best(np.concatenate(parts), per_game) if parts else np.empty(0, dtype=_CANDIDATE)


def _score(rows: Batch, shard: int, group: int, member: int, seed: int) -> NDArray[Any]:
    """Return the candidates of a row group."""
    late_R = np.flatnonzero(rows["ply"] >= FIRST_PLY)
    found = np.empty(len(late_R), dtype=_CANDIDATE)
    found["shard"], found["group"], found["row"] = shard, group, late_R
    found["game"] = rows["game"][late_R].astype(np.uint64) | np.uint64(member << 32)
    planes, evals = rows["planes"][late_R], rows["eval"][late_R].astype(np.int32)
    found["key"] = position_keys(planes, rows["castling"][late_R])
    found["phase"] = phase_of(rows["ply"][late_R], planes)
    words = splitmix64(found["game"], seed) ^ rows["ply"][late_R].astype(np.uint64)
    decided_C = (evals != BATCH_SENTINELS["eval"]) & (np.abs(evals) >= DECIDED)
    weight_C = np.where(decided_C, DECIDED_WEIGHT, 1.0)
    found["draw"] = -np.log1p(-unit_interval(splitmix64(words, seed))) / weight_C
    return found


def _best(found: NDArray[Any], count: int) -> NDArray[Any]:
    """Return the `count` candidates with the least draws of each game and phase."""
    group_C = found["game"] * np.uint64(len(PHASES)) + found["phase"]
    order = np.lexsort((found["draw"], group_C))
    return found[order[rank_equals(group_C[order]) < count]]


def rank_equals(sorted_C: NDArray[Any]) -> NDArray[np.int64]:
    """Return each element's rank among its equals in a sorted array."""
    first_C = np.r_[True, sorted_C[1:] != sorted_C[:-1]]
    begins = np.flatnonzero(first_C)
    rank_C: NDArray[np.int64] = np.arange(len(sorted_C)) - np.repeat(
        begins, np.diff(np.r_[begins, len(sorted_C)])
    )
    return rank_C


def _choose(found: NDArray[Any], count: int, per_game: int, seed: int) -> NDArray[Any]:
    """Return `count` different positions at most, in random order, `per_game` of a game."""
    shares = np.array(list(PHASES.values()))
    phase_C = splitmix64(
        splitmix64(found["game"], seed + 1) ^ found["phase"].astype(np.uint64), seed
    )
    # draws one of a game's phases by the shares
    drawn_C = -np.log1p(-unit_interval(phase_C)) / shares[found["phase"]]
    order = np.lexsort((found["draw"], drawn_C, found["game"]))
    found = found[order[rank_equals(found["game"][order]) < per_game]]
    found = found[
        np.argsort(splitmix64(found["key"] ^ splitmix64(found["game"]), seed), kind="stable")
    ]
    found = found[np.sort(np.unique(found["key"], return_index=True)[1])]
    first_C = np.zeros(len(found), dtype=np.bool_)
    for phase, most in enumerate(np.floor(shares * count).astype(np.int64)):
        first_C[np.flatnonzero(found["phase"] == phase)[:most]] = True
    taken = np.flatnonzero(first_C)
    # where a phase has too few, and for rounding
    rest = np.flatnonzero(~first_C)[: count - len(taken)]
    chosen: NDArray[Any] = found[np.sort(np.r_[taken, rest])]
    return chosen


def _read_rows(chosen: NDArray[Any], shards: Sequence[Shard]) -> dict[str, NDArray[Any]]:
    """Read the rows of positions, in their order."""
    rows: dict[str, NDArray[Any]] = {}
    order = np.lexsort((chosen["group"], chosen["shard"]))
    place_N = np.stack((chosen["shard"], chosen["group"]), axis=1)[order]
    begins = np.flatnonzero(np.r_[True, (place_N[1:] != place_N[:-1]).any(axis=1)])
    for begin, end in zip(begins, [*begins[1:], len(order)], strict=True):
        mine = order[begin:end]
        shard = shards[int(place_N[begin, 0])]
        with shard.open() as reader:
            read = reader.read(int(place_N[begin, 1]), (*KEPT, *CONTEXT), shard.games)
        for name, values in read.items():
            if name not in rows:
                rows[name] = np.empty(
                    (len(chosen), PLANES) if name == "planes" else len(chosen), dtype=values.dtype
                )
            rows[name][mine] = values[chosen["row"][mine]]
    return rows


def _games(
    games_G: NDArray[np.uint64], used: Sequence[Dataset]
) -> tuple[pa.Table, list[Mapping[str, Any]]]:
    """Return these games' rows of the games tables, and the numbered sources."""
    sources: list[Mapping[str, Any]] = []
    parts = []
    for number, dataset in enumerate(used):
        mine = (games_G[games_G >> np.uint64(32) == number] & np.uint64(0xFFFF_FFFF)).astype(
            np.int64
        )
        for first, table in dataset.games(tuple(GAMES_COLUMNS)):
            here = mine[(mine >= first) & (mine < first + len(table))] - first
            part = table.take(pa.array(here))
            moved = pa.array(part["source"].to_numpy() + len(sources), pa.uint16())
            parts.append(part.set_column(part.schema.get_field_index("source"), "source", moved))
        sources += dataset.page["sources"]
    return pa.concat_tables(parts).combine_chunks(), sources


def step_off(
    rows: dict[str, NDArray[Any]], seed: int, progress: Progress = silent, stop: Stop = never
) -> None:
    """Play one to MOST_MOVES random legal moves in each row, in place, not ending the game.

    The rows then belong to no game: no label, no evaluation, no result (`plies` is 0). Raises
    Stopped.
    """
    chance, count = np.random.Generator(np.random.PCG64(seed)), len(rows["ply"])
    for first in range(0, count, BLOCK):
        if stop():
            raise Stopped(
                "stopped while random moves were played; run the same command to begin anew"
            )
        part = {name: column[first : first + BLOCK] for name, column in rows.items()}
        boards = [to_board(position) for position in row_positions(part)]
        part["ply"] += np.array([_walk(board, chance) for board in boards], part["ply"].dtype)
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


def _walk(board: chess.Board, chance: np.random.Generator) -> int:
    """Play the random moves of one row and return their number."""
    for played in range(int(chance.integers(1, MOST_MOVES, endpoint=True))):
        moves = list(board.legal_moves)
        board.push(moves[chance.integers(len(moves))])
        if board.is_checkmate() or board.is_stalemate() or board.is_insufficient_material():
            board.pop()
            return played
    return played + 1
