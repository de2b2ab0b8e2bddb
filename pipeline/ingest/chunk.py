"""Turn one chunk of a dump into shards, which is the work of one worker.

    text -> games -> game filters -> replay -> row filters -> splits -> shuffle -> shards
    -> games table -> note

The result depends only on the chunk and the configuration. The note (`.building/parts/00007.json`)
lists the chunk's results and is written last. A chunk without a note is encoded again, to the same
bytes.

Axes: G games, R rows, W words of a packed position, H earlier moves.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache, partial
from typing import Annotated, Any

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pydantic import Field

from engine.encoding.views import LAST_MOVES
from model.settings import Count, Share, settings
from pipeline.dataset.files.columns import SPLITS, PlaneFormat
from pipeline.dataset.files.kernels import PACKED_PIECE_WORDS, PACKED_WORDS, Records
from pipeline.dataset.files.manifest import read_chunk_note
from pipeline.dataset.files.shards import make_earlier_columns, make_game_column, write_packed_rows
from pipeline.dataset.hashing import splitmix64, to_unit_interval
from pipeline.dumps.chunks import Chunk
from pipeline.errors import ConfigError, DatasetError, OtherDumpError
from pipeline.ingest.examples import find_examples
from pipeline.ingest.filters import (
    GAME_FILTERS,
    GAME_STATUS,
    KEPT,
    NOT_LABELLED,
    ROW_FILTERS,
    ROW_STATUS,
    Filters,
    GameColumns,
    RowColumns,
    apply_filters,
)
from pipeline.ingest.games import EVERY_PLY, TaggedGames, count_names, read_evaluations, read_games
from pipeline.ingest.games_table import build_games_table, choose_write_options
from pipeline.pgn import evaluation_rows, replay
from pipeline.pgn.text import NO_EVAL
from pipeline.storage.job_folder import DATASET_KIND, JobFolder
from pipeline.storage.stores import Publish, parse_path, publish_in_background, publish_json

ROWS_VERSION = 3
"""Version of the rows. Increment it when the same dump and settings give different rows, so that
older datasets are not continued or reused; tests/pipeline/ingest/test_rows_version.py compares
them."""

BLOCK_ROWS = 1 << 19
"""Approximate number of rows that are replayed, shuffled and written together: 34 MB."""

MAX_NOTED_NAMES = 50
"""Maximum number of player names in the note of a chunk without a move by a wanted player."""

OTHER_MACHINE_ERROR = (
    "{out} is being written by another ingest with other settings or code: stop that ingest, "
    "delete the folder, or choose another --out"
)
"""Error if two machines write to one store, where they do not see each other's locks."""


@settings(ConfigError)
class IngestConfig(Filters):
    """Settings of a dataset, recorded in the manifest."""

    planes: PlaneFormat = "all"
    """How shards store positions: all (77 planes, for any reader) or compact (the board, from which
    this program computes the planes; it takes half the space and is read several times as fast)."""
    test_share: Share = 0.05
    """Share of games held out for the test split, by a hash of their moves."""
    val_share: Share = 0.02
    """Share of games held out for validation during training, by a hash of their moves."""
    history: Annotated[int, Field(ge=1, le=len(LAST_MOVES))] = 8
    """Number of previous half-moves stored in a row, 1 to 8, for networks that read them
    (fianchetto-human); each after the first takes 1.6 bytes per row."""
    seed: Count = 0
    """Random seed of the shuffle, and of the choices by `sample` and `positions_per_game`."""
    chunk_mib: Annotated[int, Field(ge=0, le=256)] = 0
    """MiB of PGN text that a worker turns into shards at a time; 0 chooses 8 to 64, by the size of
    the dumps."""

    def __post_init__(self) -> None:
        Filters.__post_init__(self)  # super() fails in a dataclass with slots
        if self.test_share + self.val_share >= 1:
            raise ConfigError("the sum of test_share and val_share must be below 1")


def hash_config(config: IngestConfig) -> str:
    """Return a hash of a configuration, 16 hex digits."""
    return hashlib.sha256(json.dumps(asdict(config), sort_keys=True).encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class ChunkTask:
    """A chunk to encode, the path of its dataset, and the settings."""

    chunk: Chunk
    out: str
    config: IngestConfig

    @property
    def folder(self) -> JobFolder:
        """Return the folder of the dataset."""
        return JobFolder(parse_path(self.out), DATASET_KIND, DatasetError)


@cache
def _get_row_buffer() -> replay.Rows:
    """Return this process's row buffer, which all chunks share because new memory is slow."""
    return replay.allocate_rows(BLOCK_ROWS + replay.MAX_PLIES + 2)


def release_buffers() -> None:
    """Free this process's row buffer."""
    _get_row_buffer.cache_clear()


def note_name(index: int) -> str:
    """Return the file name of a chunk's note."""
    return f"{index:05d}.json"


def _read_rows(tagged: TaggedGames, first: int, rows: replay.Rows) -> tuple[int, int]:
    """Read games or evaluated positions into rows; return (next game, rows filled)."""
    if not tagged.is_evaluations:
        return replay.replay(tagged.text, tagged.games, tagged.setups, first, rows)
    last, filled = evaluation_rows.read_rows(tagged.text, tagged.games, first, rows)
    tagged.games.identity[first:last] = splitmix64(tagged.games.identity[first:last])
    return last, filled


def _identify_by_position(rows: replay.Rows, tagged: TaggedGames) -> None:
    """Identify puzzles and best moves by their first labelled position, so copies share a split.

    Entries without a labelled move get the status NO_MOVES.
    """
    games, parity = tagged.games, tagged.parity
    if (parity == EVERY_PLY).all():
        return
    replayed = (games.status == replay.USED) & (games.plies > 0)
    games.status[replayed & (games.plies <= parity) & (parity != EVERY_PLY)] = replay.NO_MOVES
    first = np.flatnonzero((rows.ply == parity[rows.game]) & (parity[rows.game] != EVERY_PLY))
    games.identity[rows.game[first]] = splitmix64(rows.key[first])


def _drop_games_without_evals(rows: replay.Rows, tagged: TaggedGames) -> None:
    """Mark the games without any evaluation as dropped; the row filter drops their rows."""
    evaluated = np.zeros(len(tagged.games.status), dtype=np.bool_)
    evaluated[rows.game[rows["eval"] != NO_EVAL]] = True
    replayed = np.unique(rows.game)
    tagged.games.status[replayed[~evaluated[replayed]]] = GAME_STATUS.index("filter: no evals")


def _filter_rows(rows: replay.Rows, tagged: TaggedGames, config: IngestConfig) -> NDArray[np.uint8]:
    """Return the outcome of each row, an index into ROW_STATUS."""
    status = np.full(len(rows), KEPT, dtype=np.uint8)
    if config.evals_only:
        _drop_games_without_evals(rows, tagged)
    parity = tagged.parity[rows.game]
    status[(parity != EVERY_PLY) & (rows.ply % 2 != parity)] = NOT_LABELLED
    columns = RowColumns(rows, tagged, config.seed, status)
    apply_filters(ROW_FILTERS, columns, config, status, ROW_STATUS)
    return status


def _count_outcomes(status: NDArray[np.uint8], names: Sequence[str]) -> Counter[str]:
    """Count the games or rows of each outcome, without the outcomes that do not occur."""
    counts = np.bincount(status, minlength=len(names)).tolist()
    return +Counter(dict(zip(names, counts, strict=True)))


def assign_splits(identity: NDArray[np.uint64], config: IngestConfig) -> NDArray[np.uint8]:
    """Return the split of each game, an index into SPLITS, by the hash of its moves."""
    bounds = config.test_share, config.test_share + config.val_share
    return (2 - np.searchsorted(bounds, to_unit_interval(identity), side="right")).astype(np.uint8)


def pack_rows(rows: Mapping[str, NDArray[Any]]) -> NDArray[np.uint64]:
    """Pack the positions of rows, uint64[R, W], as dataset/files/stored_planes.py describes."""
    out_WR = np.empty((PACKED_WORDS, len(rows["black"])), dtype=np.uint64)
    for bit in range(PACKED_PIECE_WORDS):
        out_WR[bit] = rows[f"codes_{bit}"]
    out_WR[PACKED_PIECE_WORDS] = rows["ep_file"]
    for name in ("castling", "black"):
        out_WR[PACKED_PIECE_WORDS] <<= np.uint64(8)
        out_WR[PACKED_PIECE_WORDS] |= rows[name]
    return out_WR.T


def _make_columns(
    tagged: TaggedGames, rows: Mapping[str, NDArray[Any]], first_game: int
) -> dict[str, NDArray[Any]]:
    """Return the columns of a shard for rows: their own, and those copied from their games."""
    columns = {name: rows[name] for name in replay.REPLAYED_COLUMNS}
    game = rows["game"].astype(np.int64)
    elo_G2 = np.stack([tagged.white_elo, tagged.black_elo], axis=1).clip(0, 65535)
    elo_G2, black = elo_G2.astype(np.uint16), rows["black"]
    columns["game"] = make_game_column(game, first_game)
    columns["elo"], columns["opponent_elo"] = elo_G2[game, black], elo_G2[game, 1 - black]
    # -1 becomes the largest unsigned value, which stands for null
    columns["base"] = tagged.games.base.astype(np.uint16)[game]
    columns["increment"] = tagged.increment.astype(np.uint8)[game]
    return columns


def _write_block(
    publish: Publish,
    task: ChunkTask,
    tagged: TaggedGames,
    rows: replay.Rows,
    status: NDArray[np.uint8],
    block: int,
) -> list[dict[str, Any]]:
    """Shuffle the kept rows of a block and write a shard per split; return the manifest entries."""
    filled = len(status)
    splits = assign_splits(tagged.games.identity, task.config)[rows.game[:filled]]
    splits[status != KEPT] = len(SPLITS)
    files, entries = task.folder.files, []
    history = task.config.history if not tagged.is_evaluations else 1
    earlier_RH = replay.collect_earlier_moves(rows, filled, history)
    for number, split in enumerate(SPLITS):
        indices = np.flatnonzero(splits == number)
        if not len(indices):
            continue
        seed = (task.config.seed, task.chunk.index, block, number)
        indices = np.random.Generator(np.random.PCG64(seed)).permutation(indices)
        shuffled = Records(rows.view(replay.ROW_DTYPE, np.ndarray)).take(indices)
        columns = _make_columns(tagged, shuffled, task.chunk.first_game)
        columns |= make_earlier_columns(earlier_RH, indices)
        name = f"{split}-{task.chunk.index:05d}-{block}.parquet"
        write = partial(write_packed_rows, pack_rows(shuffled), columns, task.config.planes)
        entries.append(asdict(publish(files, name, len(indices), write)) | {"split": split})
    return entries


def encode_chunk(task: ChunkTask) -> dict[str, Any]:
    """Turn a chunk into shards and a note; return the note with `fresh_rows`, the rows made now.

    A chunk that has a note is not encoded again. Raises OtherDumpError if the note is of another
    text, and DatasetError if it is invalid or of other settings or code, or for too many games.
    """
    notes = task.folder.notes
    note = notes / note_name(task.chunk.index)
    digest = hashlib.sha256(task.chunk.text).hexdigest()
    made_by = {"config": hash_config(task.config), "rows_version": ROWS_VERSION}
    if note.exists():
        done = read_chunk_note(note)
        if done["text_sha256"] != digest:
            raise OtherDumpError(
                f"the dump has changed since this ingest began (chunk {task.chunk.index})",
                remedy="choose another --out",
            )
        if any(done.get(name) != value for name, value in made_by.items()):
            raise DatasetError(OTHER_MACHINE_ERROR.format(out=task.out))
        return {**done, "fresh_rows": 0}
    text = np.frombuffer(task.chunk.text, dtype=np.uint8)
    config, starts = task.config, task.chunk.starts
    if task.chunk.is_evaluations:
        tagged = read_evaluations(text, starts)
    else:
        tagged = read_games(text, starts, config.player)
    games = GameColumns(tagged.text, tagged, config.seed)
    apply_filters(GAME_FILTERS, games, config, tagged.games.status, GAME_STATUS)
    rows = _get_row_buffer()
    files: list[dict[str, Any]] = []
    outcomes: Counter[str] = Counter()
    collisions = game = block = 0
    with publish_in_background() as publish:
        while game < len(starts):
            game, filled = _read_rows(tagged, game, rows)
            replayed: Any = rows[:filled]
            _identify_by_position(replayed, tagged)
            status = _filter_rows(replayed, tagged, config)
            outcomes += _count_outcomes(status, ROW_STATUS)
            files += _write_block(publish, task, tagged, rows, status, block)
            collisions += int(np.isin(replayed.promotion[status == KEPT], (2, 3, 4)).sum())
            block += 1
        table = build_games_table(
            tagged, text, task.chunk, assign_splits(tagged.games.identity, config)
        )
        write = partial(pq.write_table, table, **choose_write_options(table.schema))
        publish(notes, f"games-{task.chunk.index:05d}.parquet", len(table), write)
    kept = outcomes.pop(ROW_STATUS[KEPT], 0)
    result = {
        "chunk": task.chunk.index,
        "text_sha256": digest,
        **made_by,
        "games": len(starts),
        "status": dict(_count_outcomes(tagged.games.status, GAME_STATUS)),
        "examples": find_examples(tagged, text, task.chunk),
        "rows": kept,
        "rows_dropped": dict(outcomes),
        "label_collisions": collisions,
        "files": files,
    }
    if config.player and not kept:  # for the error message if no chunk has a move by the players
        result["names"] = count_names(text, tagged.spans, MAX_NOTED_NAMES)
    publish_json(notes, note.name, result)
    return {**result, "fresh_rows": kept}
