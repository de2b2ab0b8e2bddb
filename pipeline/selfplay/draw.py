"""Draw the positions to search from datasets, and store them as a shard.

    train splits --weighted draw--> a few candidates of each game and phase --shares of phases-->
    [one to four random moves] --> positions.parquet, games.parquet

Some positions are a few random moves away from human games. Searches visit such positions, but
games rarely contain them, so a value trained only on games has never seen them.

The draw uses hashes of game, ply and seed as random numbers, so it does not depend on the form in
which the dataset stores its planes. A weighted draw without replacement takes the rows with the
smallest -log(u) / weight (Efraimidis and Spirakis 2006). Memory grows with the number of games, not
of positions.

Axes: R rows of a row group, P planes, C candidates, N positions drawn, W words of a packed
position, G games drawn.
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
from pipeline.dataset.files.stored_planes import pack_planes, rows_to_positions
from pipeline.dataset.hashing import splitmix64, to_unit_interval
from pipeline.dataset.position_keys import hash_positions
from pipeline.errors import Stopped
from pipeline.selfplay.config import ExploreConfig, ExploreError
from pipeline.storage.stores import publish, publish_json

LOG = logging.getLogger(__name__)

POSITIONS_FILE, DRAWN_FILE = "positions.parquet", "drawn.json"
SCANNED_COLUMNS = ("planes", "castling", "game", "ply", "eval")
"""Columns read from every row to draw positions."""
COPIED_COLUMNS = (
    "planes", "castling", "ep_file", "halfmove", "repetition", "label", "promotion", "result",
    "eval", "ply", "plies", "game",
)  # fmt: skip
"""Columns that a searched row copies from its position."""
CONTEXT_COLUMNS = (*LAST_MOVES, "clock", "elo", "opponent_elo", "base", "increment")
"""Columns that only human positions have, copied as well; null after random moves. Searches do not
read them."""
PHASE_SHARES = {"opening": 0.2, "middlegame": 0.5, "endgame": 0.3}
"""Share of each phase among the drawn positions."""
MIN_PLY = 6
"""First ply of a game from which positions are drawn."""
OPENING_PLIES = 20
"""Number of plies after which a position is no longer an opening."""
MAX_ENDGAME_PIECES = 6
"""Maximum number of knights, bishops, rooks and queens on the board in an endgame."""
DECIDED_CENTIPAWNS, DECIDED_WEIGHT = 300, 0.25
"""Engine evaluation from which a position counts as decided, and the weight of such positions in
the draw; all others have weight 1."""
MAX_CANDIDATES = 1 << 22
"""Number of candidates in memory at which those that cannot be drawn any more are discarded."""

MAX_RANDOM_MOVES = 4
"""Maximum number of random moves between a position of a game and the searched position."""
RANDOM_MOVE_BLOCK = 4096
"""Number of rows converted to python-chess boards at a time; a board takes 2 kB."""
_CANDIDATE_DTYPE = np.dtype(
    [("game", "u8"), ("key", "u8"), ("draw", "f8"), ("shard", "i4"), ("group", "i4"),
     ("row", "i4"), ("phase", "u1")]
)  # fmt: skip
"""A candidate: `game` is dataset << 32 | game, `key` the position's hash, `draw` its random number
(the smallest are drawn first). `shard`, `group` (row group) and `row` locate it."""


def classify_phases(ply_R: NDArray[Any], planes_RP: NDArray[np.uint64]) -> NDArray[np.uint8]:
    """Return each position's phase as an index into PHASE_SHARES, uint8[R]."""
    pieces_R = np.bitwise_count(planes_RP[:, 2:10]).sum(axis=1)  # knights to queens of both sides
    phase_R = np.where(ply_R < OPENING_PLIES, 0, 1)
    return np.where(pieces_R <= MAX_ENDGAME_PIECES, 2, phase_R).astype(np.uint8)


def draw_positions(
    datasets: Sequence[Path],
    config: ExploreConfig,
    folder: Path,
    progress: Progress,
    stop: Stop,
    *,
    exact_count: bool,
) -> dict[str, Any]:
    """Draw positions from train splits into `folder`; return the contents of `drawn.json`.

    If `drawn.json` exists, nothing is drawn. Raises ExploreError if no position can be drawn or,
    with `exact_count`, fewer than `config.count`. Raises DatasetError for a folder that is not a
    dataset, and Stopped.
    """
    if (folder / DRAWN_FILE).exists():
        drawn: dict[str, Any] = json.loads((folder / DRAWN_FILE).read_bytes())
        return drawn
    opened = (Dataset.open(directory, progress, stop) for directory in datasets)
    members = [part for dataset in opened for part in dataset.parts if part.has_rows("train")]
    shards = [
        (number, shard)
        for number, part in enumerate(members)
        for shard in part.list_shards("train")
    ]
    chosen = _draw_candidates(members, shards, config, progress, stop)
    # if there are too few positions, random moves are played several times from the same position
    if config.source == "near" and len(chosen):
        chosen = chosen[np.arange(config.count) % len(chosen)]
    if len(chosen) < config.count:
        names = ", ".join(map(str, datasets))
        if not len(chosen):
            raise ExploreError(
                f"no position to search in the train split of {names} from half-move {MIN_PLY} "
                "on: add a dataset with longer games"
            )
        shortage = (
            f"count is {config.count:,}, but the train split of {names} has only {len(chosen):,} "
            f"distinct positions from half-move {MIN_PLY} on"
        )
        if exact_count:
            raise ExploreError(f"{shortage}: choose a smaller count")
        LOG.warning("%s; all of them are searched", shortage)
    rows = _read_rows(chosen, [shard for _, shard in shards])
    games, rows["game"] = np.unique(chosen["game"], return_inverse=True)
    rows["game"] = rows["game"].astype(np.uint32)
    if config.source == "near":
        play_random_moves(rows, config.seed, progress, stop)
        rows |= {name: np.full(len(chosen), BATCH_SENTINELS[name]) for name in CONTEXT_COLUMNS}
    table = make_rows_table(pack_planes(rows.pop("planes"), rows), rows, "compact")
    games_table, sources = _select_games(games, members)
    write_games = partial(pq.write_table, games_table, compression="zstd")
    publish(folder, GAMES, len(games), write_games)
    publish(folder, POSITIONS_FILE, len(chosen), partial(write_rows, table))
    counts = np.bincount(chosen["phase"], minlength=len(PHASE_SHARES)).tolist()
    drawn = {
        "positions": len(chosen),
        "phases": dict(zip(PHASE_SHARES, counts, strict=True)),
        "sources": sources,
    }
    publish_json(folder, DRAWN_FILE, drawn)  # last: it marks the draw as complete
    return drawn


def read_drawn(path: Path) -> tuple[NDArray[np.uint64], dict[str, NDArray[Any]]]:
    """Read positions.parquet; return the packed positions, uint64[N, W], and the other columns."""
    names = (*COPIED_COLUMNS, *CONTEXT_COLUMNS)
    with open_shard(path) as reader:
        groups = [reader.read(at, names, packed=True) for at in range(len(reader.groups))]
    columns = {name: np.concatenate([group[name] for group in groups]) for name in names}
    return columns.pop("planes"), columns


def identify_datasets(datasets: Sequence[Path]) -> list[dict[str, str]]:
    """Return the name, manifest hash and held-out part of datasets and training sets' members."""
    return [
        {"name": part.name, "manifest_sha256": part.identity, "held_out": part.held_out}
        for directory in datasets
        for part in Dataset.open(directory).parts
    ]


def _draw_candidates(
    members: Sequence[Dataset],
    shards: Sequence[tuple[int, Shard]],
    config: ExploreConfig,
    progress: Progress,
    stop: Stop,
) -> NDArray[Any]:
    """Draw up to `config.count` candidates, as few per game as possible, to limit correlation."""
    games = 0.0
    for dataset in members:
        positions = dataset.manifest["positions"]
        games += dataset.manifest["games"]["used"] * positions["train"] / max(positions["total"], 1)
    per_game, before = max(1, math.ceil(config.count / max(games, 1.0))), -1
    while True:
        candidates = _collect_candidates(shards, per_game, config.seed, progress, stop)
        chosen = _choose_positions(candidates, config.count, per_game, config.seed)
        if len(chosen) in (config.count, before):
            return chosen
        before, per_game = len(chosen), 2 * per_game


def _collect_candidates(
    shards: Sequence[tuple[int, Shard]], per_game: int, seed: int, progress: Progress, stop: Stop
) -> NDArray[Any]:
    """Return the first `per_game` candidates of each game and phase, in the order of the draw."""
    parts: list[NDArray[Any]] = []
    in_memory = done = 0
    total = sum(shard.rows for _, shard in shards)
    for number, (member, shard) in enumerate(shards):
        with shard.open() as reader:
            for group in range(len(reader.groups)):
                if stop():
                    raise Stopped(
                        "stopped while positions were drawn; run the same command to start over"
                    )
                rows = reader.read(group, SCANNED_COLUMNS, shard.games)
                parts.append(_make_candidates(rows, number, group, member, seed))
                in_memory += len(parts[-1])
                done += len(rows["ply"])
                progress(Tick(done, total, "positions read", {}))
                if in_memory > MAX_CANDIDATES:
                    parts = [_select_first(np.concatenate(parts), per_game)]
                    in_memory = len(parts[0])
    if not parts:
        return np.empty(0, dtype=_CANDIDATE_DTYPE)
    return _select_first(np.concatenate(parts), per_game)


def _make_candidates(rows: Batch, shard: int, group: int, member: int, seed: int) -> NDArray[Any]:
    """Make a candidate from each row with ply MIN_PLY or later."""
    late_C = np.flatnonzero(rows["ply"] >= MIN_PLY)
    candidates = np.empty(len(late_C), dtype=_CANDIDATE_DTYPE)
    candidates["shard"], candidates["group"], candidates["row"] = shard, group, late_C
    candidates["game"] = rows["game"][late_C].astype(np.uint64) | np.uint64(member << 32)
    planes_CP, eval_C = rows["planes"][late_C], rows["eval"][late_C].astype(np.int32)
    candidates["key"] = hash_positions(planes_CP, rows["castling"][late_C])
    candidates["phase"] = classify_phases(rows["ply"][late_C], planes_CP)
    hash_C = splitmix64(candidates["game"], seed) ^ rows["ply"][late_C].astype(np.uint64)
    decided_C = (eval_C != BATCH_SENTINELS["eval"]) & (np.abs(eval_C) >= DECIDED_CENTIPAWNS)
    weight_C = np.where(decided_C, DECIDED_WEIGHT, 1.0)
    candidates["draw"] = -np.log1p(-to_unit_interval(splitmix64(hash_C, seed))) / weight_C
    return candidates


def _select_first(candidates: NDArray[Any], count: int) -> NDArray[Any]:
    """Return the `count` candidates of each game and phase with the smallest draws."""
    group_C = candidates["game"] * np.uint64(len(PHASE_SHARES)) + candidates["phase"]
    order_C = np.lexsort((candidates["draw"], group_C))
    return candidates[order_C[rank_in_group(group_C[order_C]) < count]]


def rank_in_group(sorted_C: NDArray[Any]) -> NDArray[np.int64]:
    """Return each element's index within its run of equal elements in a sorted array."""
    is_first = np.r_[True, sorted_C[1:] != sorted_C[:-1]]
    begins = np.flatnonzero(is_first)
    rank_C: NDArray[np.int64] = np.arange(len(sorted_C)) - np.repeat(
        begins, np.diff(np.r_[begins, len(sorted_C)])
    )
    return rank_C


def _choose_positions(pool: NDArray[Any], count: int, per_game: int, seed: int) -> NDArray[Any]:
    """Return up to `count` distinct positions in random order, up to `per_game` from each game."""
    shares = np.array(list(PHASE_SHARES.values()))
    hash_C = splitmix64(splitmix64(pool["game"], seed + 1) ^ pool["phase"].astype(np.uint64), seed)
    # order the phases of each game at random, weighted by their shares
    phase_draw_C = -np.log1p(-to_unit_interval(hash_C)) / shares[pool["phase"]]
    order_C = np.lexsort((pool["draw"], phase_draw_C, pool["game"]))
    pool = pool[order_C[rank_in_group(pool["game"][order_C]) < per_game]]
    shuffle_C = splitmix64(pool["key"] ^ splitmix64(pool["game"]), seed)
    pool = pool[np.argsort(shuffle_C, kind="stable")]
    pool = pool[np.sort(np.unique(pool["key"], return_index=True)[1])]
    is_chosen = np.zeros(len(pool), dtype=np.bool_)
    for phase, phase_count in enumerate(np.floor(shares * count).astype(np.int64)):
        is_chosen[np.flatnonzero(pool["phase"] == phase)[:phase_count]] = True
    # fill up with any phase if a phase has too few positions, or shares were rounded down
    is_chosen[np.flatnonzero(~is_chosen)[: count - is_chosen.sum()]] = True
    chosen: NDArray[Any] = pool[is_chosen]
    return chosen


def _read_rows(chosen: NDArray[Any], shards: Sequence[Shard]) -> dict[str, NDArray[Any]]:
    """Read the rows of the chosen candidates, each row group once."""
    rows: dict[str, NDArray[Any]] = {}
    order_N = np.lexsort((chosen["group"], chosen["shard"]))
    group_N = np.stack((chosen["shard"], chosen["group"]), axis=1)[order_N]
    begins = np.flatnonzero(np.r_[True, (group_N[1:] != group_N[:-1]).any(axis=1)])
    for begin, end in zip(begins, [*begins[1:], len(order_N)], strict=True):
        in_group = order_N[begin:end]
        shard = shards[int(group_N[begin, 0])]
        with shard.open() as reader:
            names = (*COPIED_COLUMNS, *CONTEXT_COLUMNS)
            group = reader.read(int(group_N[begin, 1]), names, shard.games)
        for name, values in group.items():
            if name not in rows:
                shape = (len(chosen), PLANES) if name == "planes" else len(chosen)
                rows[name] = np.empty(shape, dtype=values.dtype)
            rows[name][in_group] = values[chosen["row"][in_group]]
    return rows


def _select_games(
    games_G: NDArray[np.uint64], members: Sequence[Dataset]
) -> tuple[pa.Table, list[Mapping[str, Any]]]:
    """Return the rows of games.parquet of the given games, and the sources to which they refer.

    `games_G` holds dataset index << 32 | number of the game.
    """
    sources: list[Mapping[str, Any]] = []
    parts = []
    for number, dataset in enumerate(members):
        in_dataset = games_G[games_G >> np.uint64(32) == number] & np.uint64(0xFFFF_FFFF)
        numbers = in_dataset.astype(np.int64)
        for first, table in dataset.read_games(tuple(GAMES_COLUMNS)):
            in_table = numbers[(numbers >= first) & (numbers < first + len(table))] - first
            part = table.take(pa.array(in_table))
            shifted = pa.array(part["source"].to_numpy() + len(sources), pa.uint16())
            parts.append(part.set_column(part.schema.get_field_index("source"), "source", shifted))
        sources += dataset.manifest["sources"]
    return pa.concat_tables(parts).combine_chunks(), sources


def play_random_moves(
    rows: dict[str, NDArray[Any]], seed: int, progress: Progress, stop: Stop
) -> None:
    """Play up to MAX_RANDOM_MOVES random legal moves in each row, in place.

    Each row gets at least one move, unless that would end the game: such a move is taken back, and
    is the last. The rows then belong to no game: they have no label, evaluation or result, and
    `plies` is 0. Raises Stopped.
    """
    rng, count = np.random.Generator(np.random.PCG64(seed)), len(rows["ply"])
    for first in range(0, count, RANDOM_MOVE_BLOCK):
        if stop():
            raise Stopped(
                "stopped while random moves were played; run the same command to start over"
            )
        part = {name: column[first : first + RANDOM_MOVE_BLOCK] for name, column in rows.items()}
        boards = [to_board(position) for position in rows_to_positions(part)]
        part["ply"] += np.array([_play_moves(board, rng) for board in boards], part["ply"].dtype)
        part["planes"][:] = planes_of(boards)
        part["halfmove"][:] = [board.halfmove_clock for board in boards]
        positions = [from_board(board) for board in boards]
        part["castling"][:] = [int(castling_bits(position)) for position in positions]
        part["ep_file"][:] = [int(en_passant_file(position)) for position in positions]
        progress(Tick(min(first + RANDOM_MOVE_BLOCK, count), count, "positions moved"))
    rows["label"][:] = NO_LABEL
    rows["eval"][:] = BATCH_SENTINELS["eval"]
    for name in ("plies", "promotion", "repetition", "result"):
        rows[name][:] = 0


def _play_moves(board: chess.Board, rng: np.random.Generator) -> int:
    """Play random moves on the board, and return their number."""
    for played in range(int(rng.integers(1, MAX_RANDOM_MOVES, endpoint=True))):
        moves = list(board.legal_moves)
        board.push(moves[rng.integers(len(moves))])
        if board.is_checkmate() or board.is_stalemate() or board.is_insufficient_material():
            board.pop()
            return played
    return played + 1
