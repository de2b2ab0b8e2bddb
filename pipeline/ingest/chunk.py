"""One chunk of a dump into shards: what a worker does.

    text -> tags -> filters -> replay -> filters of rows -> splits -> shuffle -> shards
    then the games' table, and a note of what was done

Everything depends on the chunk and the configuration alone. The note (`.building/parts/00007.json`) appears last: a chunk with
a note is done, one without is done again, to the same bytes.

Axes: G games, R rows.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache, partial
from typing import Any, Literal

import chess
import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

from engine.board.position import FenError, from_fen, parse_fen, playable
from engine.encoding.views import LAST_MOVES
from pipeline.dataset.files.columns import FORMS, Form
from pipeline.dataset.files.permute import Records
from pipeline.dataset.files.plane_kernels import BOARDS, PACKED
from pipeline.dataset.files.shards import (
    SPLITS,
    earlier_columns,
    game_numbers,
    publish_json,
    read_note,
    write_packed,
)
from pipeline.dataset.hashing import unit_interval
from pipeline.dumps.reader import Chunk
from pipeline.errors import ConfigError, DatasetError, OtherDumpError
from pipeline.ingest.buckets import bucket_count, drawn, write_buckets
from pipeline.ingest.filters import Filters, filter_games, value, which
from pipeline.ingest.games_table import Tagged, games_table, numbers
from pipeline.ingest.row_filters import NO_LABELS, by_position, filter_rows
from pipeline.pgn import replay, tags
from pipeline.pgn.san import UNKNOWN_RESULT
from pipeline.storage.building import PARTS, files_folder, require_unused
from pipeline.storage.stores import Publisher, place

BLOCK_ROWS = 1 << 19
"""Rows that are replayed, shuffled and written together at most: 34 MB."""

SHARD_ROWS = (1 << 10, 1 << 23)
"""Fewest and most rows that a shard may be set to: 1,024 are 55 kB, 8 million half a GB."""

OTHERS = "{out} is written by another ingest with other settings or code: stop that, delete it, or choose another --out"
"""What is said where two machines write to one store, whose locks neither sees."""

# Lichess and python-chess both call standard chess from a set-up position "From Position".
STANDARD = frozenset({"", "standard", "chess", "classical", "normal", "illegal", "from position"})


@dataclass(frozen=True, kw_only=True, slots=True)
class IngestConfig(Filters):
    """What a dataset is made with; all of it is in the manifest, and a dataset made otherwise is refused."""

    test_share: float = 0.05
    """Share of games held out for the test split, by a hash of their moves."""
    val_share: float = 0.02
    """Share of games held out for validation while training, by the same hash."""
    planes: Form = "all"
    """How shards hold a position: all, the 77 planes for any reader; or compact, the board, from which this program makes
    the planes again: half the bytes, and batches several times as fast."""
    history: int = 8
    """Half-moves before a position that its row keeps, 1 to 8: what a network is shown that reads them (fianchetto-human);
    each beyond the first takes 1.6 bytes a row."""
    order: Literal["shuffled", "game"] = "shuffled"
    """Order of rows in a shard: shuffled, or game for the order of the dump (half the bytes, unfit for training)."""
    seed: int = 0
    """Random seed of the shuffle and of the choice of games."""
    chunk_mib: int = 0
    """MiB of PGN text that a worker takes at a time, and that a shard is made of; 0 chooses 8 to 64 by the size of the
    dumps."""
    shard_rows: int = 0
    """Most rows of a shard, drawn from the whole dump (262144, for instance); 0 makes one shard of each chunk, shuffled
    within it, which is enough for training, since that shuffles across shards. More than 0 takes longer, and meanwhile 37
    bytes of disk for each row, and 120 bytes of memory for each row of a shard (of a million at least) and worker; for a
    whole month use `chunk_mib=64`."""

    def __post_init__(self) -> None:
        """Check what the types do not say."""
        Filters.__post_init__(self)  # a class with slots is made anew by its decorator, and super() knows the old one
        if not (0 <= self.test_share < 1 and 0 <= self.val_share < 1 and self.test_share + self.val_share < 1):
            raise ConfigError("test_share and val_share are shares: each from 0 to 1, and together below 1")
        if self.planes not in FORMS:
            raise ConfigError(f"planes are all or compact, not {self.planes!r}")
        if not 1 <= self.history <= len(LAST_MOVES):
            raise ConfigError(f"history is from 1 to {len(LAST_MOVES)} half-moves, not {self.history}")
        if self.order not in ("shuffled", "game"):
            raise ConfigError(f"order is shuffled or game, not {self.order!r}")
        if not 0 <= self.chunk_mib <= 256:
            raise ConfigError(
                f"chunk_mib is from 1 to 256, or 0 to choose by the size of the dumps, not {self.chunk_mib}"
            )
        if self.seed < 0:
            raise ConfigError(f"seed is at least 0, not {self.seed}")
        if self.shard_rows and not SHARD_ROWS[0] <= self.shard_rows <= SHARD_ROWS[1]:
            raise ConfigError(f"shard_rows is from {SHARD_ROWS[0]:,} to {SHARD_ROWS[1]:,}, or 0, not {self.shard_rows}")
        if self.shard_rows and self.order == "game":
            raise ConfigError("shard_rows draws rows from the whole dump, and order game keeps them: choose one")


def config_digest(config: IngestConfig) -> str:
    """Give what tells a configuration from others, 16 hex digits."""
    return hashlib.sha256(json.dumps(asdict(config), sort_keys=True).encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class ChunkTask:
    """A chunk, and what to do with it."""

    chunk: Chunk
    out: str
    config: IngestConfig
    code: str = ""
    """What the driver's code is (pipeline/ingest/rows_code.py), for the note; "" for rows that go into no dataset."""


@cache
def _rows() -> replay.Rows:
    """Make room for rows, which a worker keeps from chunk to chunk: fresh pages cost more than the writing of them."""
    return replay.allocate_rows(BLOCK_ROWS + replay.MAX_PLIES + 2)


def release_buffers() -> None:
    """Give the memory of `_rows` back, where this process encodes no more for now."""
    _rows.cache_clear()


def part_name(index: int) -> str:
    """Give the name of a chunk's note."""
    return f"{index:05d}.json"


def _drop_variants(text: NDArray[np.uint8], spans: NDArray[np.int64], games: replay.Games) -> None:
    """Mark games whose Variant tag is not standard chess."""
    games.status[~which(text, spans, lambda variant: variant.lower() in STANDARD)] = replay.VARIANT


def _set_up(text: NDArray[np.uint8], spans: NDArray[np.int64], games: replay.Games) -> NDArray[np.uint64]:
    """Read the FEN tags: give the starting positions and point the games at them."""
    setups = [from_fen(chess.STARTING_FEN)]
    for game in np.flatnonzero(spans[:, 1]):
        fen = value(text, spans[game])
        try:
            board = parse_fen(fen)
            if board.has_chess960_castling_rights():
                games.status[game] = replay.VARIANT
                continue
            setups.append(playable(board, fen))
            games.setup[game] = len(setups) - 1
        except FenError:
            games.status[game] = replay.BAD_FEN
    return np.array(setups, dtype=np.uint64)


def read_games(text: NDArray[np.uint8], starts: NDArray[np.int64], config: IngestConfig) -> Tagged:
    """Read the tags of the games at `starts` and apply the filters that need no moves."""
    count = len(starts)
    bounds = np.append(starts, len(text))
    spans = np.zeros((count, len(tags.TAGS), 2), dtype=np.int64)
    games = replay.Games(
        start=bounds,
        movetext=np.zeros(count, dtype=np.int64),
        result=np.full(count, UNKNOWN_RESULT, dtype=np.int8),
        base=np.zeros(count, dtype=np.int32),
        setup=np.zeros(count, dtype=np.int32),
        status=np.full(count, replay.USED, dtype=np.uint8),
        plies=np.zeros(count, dtype=np.uint16),
        identity=np.zeros(count, dtype=np.uint64),
    )
    tags.scan_tags(text, bounds, spans, games.movetext)
    replay.read_results(text, spans[:, tags.RESULT], games.result)
    control = spans[:, tags.TIME_CONTROL]
    games.base[:] = numbers(text, control, -1)
    slashed = tags.spans_after(text, control, ord("/"))[:, 0] != control[:, 0]
    games.base[slashed] = -1  # "40/9000" and "1/259200": moves or days, not seconds for the game
    plus = tags.spans_after(text, control, ord("+"))
    increment = numbers(text, plus, -1)
    increment[plus[:, 0] == control[:, 0]] = 0  # "300" is 300+0
    increment[games.base < 0] = -1
    white = numbers(text, spans[:, tags.WHITE_ELO], 0)
    black = numbers(text, spans[:, tags.BLACK_ELO], 0)
    setups = _set_up(text, spans[:, tags.FEN], games)
    _drop_variants(text, spans[:, tags.VARIANT], games)
    parity = _labels(text, spans[:, tags.LABELS], games)
    filter_games(text, spans, games, (white, black), increment, config, config.seed)
    return Tagged(games, spans, white, black, increment, parity, setups)


def _labels(text: NDArray[np.uint8], spans: NDArray[np.int64], games: replay.Games) -> NDArray[np.uint8]:
    """Read which plies are labels in what no game is (pipeline/dumps/formats writes that tag), and mark rows that were
    broken.
    """
    present = spans[:, 1] > 0
    number = numbers(text, spans, NO_LABELS)
    games.result[present] = replay.NO_RESULT
    games.status[present & (number > 1)] = replay.BAD_ROW
    return np.where(present & (number <= 1), number, NO_LABELS).astype(np.uint8)


def split_of(identity: NDArray[np.uint64], config: IngestConfig) -> NDArray[np.uint8]:
    """Give each game's split as an index into SPLITS, from the hash of its moves: two copies of a game never part."""
    share = unit_interval(identity)
    return np.where(share < config.test_share, 2, np.where(share < config.test_share + config.val_share, 1, 0)).astype(
        np.uint8
    )


def buckets_of(config: IngestConfig, split: int) -> int:
    """Count the buckets that rows of a split, an index into SPLITS, are drawn to."""
    held_out = (0.0, config.val_share, config.test_share)
    return bucket_count(config.chunk_mib, held_out[split] or 1.0 - sum(held_out))


def packed_of(rows: Mapping[str, NDArray[Any]]) -> NDArray[np.uint64]:
    """Return the packed positions (`pipeline.dataset.files.stored_planes`) of rows that were taken, column by column."""
    out_WR = np.empty((PACKED, len(rows["black"])), dtype=np.uint64)
    for bit in range(BOARDS):
        out_WR[bit] = rows[f"codes_{bit}"]
    out_WR[BOARDS] = rows["ep_file"]
    for name in ("castling", "black"):
        out_WR[BOARDS] <<= np.uint64(8)
        out_WR[BOARDS] |= rows[name]
    return out_WR.T


def _columns(tagged: Tagged, rows: Mapping[str, NDArray[Any]], first_game: int) -> dict[str, NDArray[Any]]:
    """Return the columns of rows that were taken, with those that come from the games."""
    columns = replay.select_columns(rows)
    game = rows["game"].astype(np.int64)
    elo_2G = np.stack([tagged.white_elo, tagged.black_elo], axis=1).clip(0, 65535).astype(np.uint16).reshape(-1)
    mover = 2 * game + rows["black"]
    base, increment = tagged.games.base, tagged.increment
    columns["game"] = game_numbers(game, first_game)
    columns["elo"] = elo_2G[mover]
    columns["opponent_elo"] = elo_2G[mover ^ 1]
    columns["base"] = np.where((base < 0) | (base > 65534), 65535, base).astype(np.uint16)[game]
    columns["increment"] = np.where((increment < 0) | (increment > 254), 255, increment).astype(np.uint8)[game]
    return columns


def _write_block(
    publisher: Publisher,
    task: ChunkTask,
    tagged: Tagged,
    rows: replay.Rows,
    filled: int,
    kept: NDArray[np.int64] | None,
    block: int,
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Write one block of rows, those that are kept, a file a split: give the shards, and what shards will be made of."""
    splits = split_of(tagged.games.identity, task.config)[rows.game[:filled]]
    if kept is not None:
        splits[np.delete(np.arange(filled), kept)] = len(SPLITS)  # of none
    shards, loose = [], []
    earlier_RH = replay.earlier_moves(rows, filled, task.config.history)
    for number, split in enumerate(SPLITS):
        picked = np.flatnonzero(splits == number)
        if not len(picked):
            continue
        seed = (task.config.seed, task.chunk.index, block, number)
        rows_B = np.empty(0, dtype=np.int64)
        if task.config.shard_rows:
            picked, rows_B = drawn(picked, buckets_of(task.config, number), seed)
        elif task.config.order == "shuffled":
            picked = np.random.Generator(np.random.PCG64(seed)).permutation(picked)
        taken = Records(rows.view(replay.ROW, np.ndarray)).take(picked)
        columns, packed_RW = _columns(tagged, taken, task.chunk.first_game), packed_of(taken)
        columns |= earlier_columns(earlier_RH, picked)
        name = f"{split}-{task.chunk.index:05d}-{block}"
        if task.config.shard_rows:
            write = partial(write_buckets, columns, packed_RW, rows_B, task.config.history)
            publisher.publish(place(task.out) / PARTS, f"{name}.rows", len(picked), write)
            loose.append({"name": f"{name}.rows", "split": split, "rows": len(picked)})
            continue
        require_unused(place(task.out), [f"{name}.parquet"], DatasetError)
        write = partial(write_packed, packed_RW, columns, task.config.planes)
        done = publisher.publish(files_folder(place(task.out)), f"{name}.parquet", len(picked), write)
        shards.append(
            {"name": done.name, "split": split, "rows": done.rows, "bytes": done.bytes, "sha256": done.sha256}
        )
    return shards, loose


def encode_chunk(task: ChunkTask) -> dict[str, Any]:
    """Turn a chunk into shards and notes: give the note, with `rows` and `fresh_rows` (0 when it was done before).

    Raises DatasetError when the chunk was done before from other text, or with other settings.
    """
    parts = place(task.out) / PARTS
    note = parts / part_name(task.chunk.index)
    digest = hashlib.sha256(task.chunk.text).hexdigest()
    if note.exists():
        done = read_note(note)
        if done["text_sha256"] != digest:
            raise OtherDumpError(
                f"the dump has changed since this ingest was begun (chunk {task.chunk.index})",
                remedy="choose another --out",
                code="taken",
            )
        if (done.get("config"), done.get("code")) != (config_digest(task.config), task.code):
            raise DatasetError(OTHERS.format(out=task.out))
        return {**done, "fresh_rows": 0}
    text = np.frombuffer(task.chunk.text, dtype=np.uint8)
    tagged = read_games(text, task.chunk.starts, task.config)
    rows = _rows()
    files: list[dict[str, Any]] = []
    loose: list[dict[str, Any]] = []
    dropped: Counter[str] = Counter()
    total = collisions = game = block = 0
    with Publisher() as publisher:
        while game < len(task.chunk.starts):
            game, filled = replay.replay(text, tagged.games, tagged.setups, game, task.config.min_plies, rows)
            by_position(rows, filled, tagged.games, tagged.parity)
            kept, refused = filter_rows(rows, filled, tagged.games, tagged.parity, task.config, task.config.seed)
            dropped += refused
            used = slice(filled) if kept is None else kept
            shards, unsorted = _write_block(publisher, task, tagged, rows, filled, kept, block)
            files += shards
            loose += unsorted
            collisions += int(np.isin(rows.promotion[used], (2, 3, 4)).sum())
            total, block = total + (filled if kept is None else len(kept)), block + 1
        table = games_table(tagged, text, task.chunk, split_of(tagged.games.identity, task.config))
        games_name = f"games-{task.chunk.index:05d}.parquet"
        publisher.publish(parts, games_name, len(table), lambda target: pq.write_table(table, target))
    counts = np.bincount(tagged.games.status, minlength=len(replay.STATUS))
    result = {
        "chunk": task.chunk.index,
        "text_sha256": digest,
        "config": config_digest(task.config),
        "code": task.code,
        "games": len(task.chunk.starts),
        "status": {name: int(count) for name, count in zip(replay.STATUS, counts, strict=True) if count},
        "rows": total,
        "rows_dropped": dict(dropped),
        "label_collisions": collisions,
        "files": files,
        "loose": loose,
    }
    publish_json(parts, note.name, result)
    return {**result, "fresh_rows": total}
