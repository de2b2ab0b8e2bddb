"""Turn one chunk of a dump into shards: the work of one worker.

    text -> tags -> filters -> replay -> filters of rows -> splits -> shuffle -> shards.
    The games' table and a note of what was done follow.

The result depends on the chunk and the configuration alone. The note (`.building/parts/00007.json`)
appears last: a chunk with a note is done, one without is done again, to the same bytes.

Axes: G games, R rows.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache, partial
from typing import Annotated, Any

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pydantic import Field

from engine.board.position import WORDS
from engine.encoding.views import LAST_MOVES
from model.settings import Count, Share, settings
from pipeline.dataset.files.columns import Form
from pipeline.dataset.files.kernels import BOARDS, PACKED, Records
from pipeline.dataset.files.shards import (
    SPLITS,
    earlier_columns,
    game_numbers,
    publish_json,
    read_note,
    write_packed,
)
from pipeline.dataset.hashing import splitmix64, unit_interval
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
    active,
    apply_filters,
)
from pipeline.ingest.games_table import games_table, write_options
from pipeline.ingest.tag_values import (
    NO_LABELS,
    Tagged,
    count_names,
    find_players,
    map_values,
    matches,
    numbers,
    read_fens,
    read_results,
    read_time_control,
)
from pipeline.pgn import evaluation_rows, replay, tags
from pipeline.pgn.comments import NO_EVAL
from pipeline.pgn.foreign import translate_movetext
from pipeline.pgn.san import UNKNOWN_RESULT
from pipeline.storage.job_folder import DATASET, JobFolder
from pipeline.storage.stores import Publish, place, publish_behind

ROWS_VERSION = 2
"""Raise it when the same dump and settings give other rows: datasets of another version are not
continued or reused. tests/pipeline/ingest/test_rows_version.py fails if rows change and this does
not."""

BLOCK_ROWS = 1 << 19
"""Maximum number of rows that are replayed, shuffled and written together: 34 MB."""

NAMES = 50
"""Number of player names, the most frequent ones, that a chunk notes if it has no move of the
wanted players."""

OTHERS = (
    "{out} is written by another ingest with other settings or code: stop that, delete it, "
    "or "
    "choose another --out"
)
"""Error if two machines write to one store, whose locks neither sees."""

# Lichess and python-chess both call standard chess from a set-up position "From Position".
STANDARD = frozenset({"", "standard", "chess", "classical", "normal", "illegal", "from position"})


@settings(ConfigError)
class IngestConfig(Filters):
    """Settings of a dataset, recorded in the manifest."""

    planes: Form = "all"
    """How shards hold positions: all (77 planes, for any reader) or compact (the board, from which
    this program makes the planes). Compact takes half the bytes, and its batches are several times
    as fast."""
    test_share: Share = 0.05
    """Share of games held out for the test split, by a hash of their moves."""
    val_share: Share = 0.02
    """Share of games held out for validation while training, by a hash of their moves."""
    history: Annotated[int, Field(ge=1, le=len(LAST_MOVES))] = 8
    """Previous half-moves that a row keeps, 1 to 8, for networks that read them (fianchetto-human);
    each after the first takes 1.6 bytes per row."""
    seed: Count = 0
    """Random seed of the shuffle and of the choice of games."""
    chunk_mib: Annotated[int, Field(ge=0, le=256)] = 0
    """MiB of PGN text that a worker encodes at a time, into a shard for each split; 0 chooses 8 to
    64 by the dumps' size."""

    def __post_init__(self) -> None:
        """Validate the settings."""
        Filters.__post_init__(self)  # super() does not work in a dataclass with slots
        if self.test_share + self.val_share >= 1:
            raise ConfigError("test_share and val_share must be below 1 together")


def config_digest(config: IngestConfig) -> str:
    """Return a hash of a configuration, 16 hex digits."""
    return hashlib.sha256(json.dumps(asdict(config), sort_keys=True).encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class ChunkTask:
    """A chunk, the dataset it belongs to, and its settings."""

    chunk: Chunk
    out: str
    config: IngestConfig


def _folder(task: ChunkTask) -> JobFolder:
    return JobFolder(place(task.out), DATASET, DatasetError)


@cache
def _row_buffer() -> replay.Rows:
    """Return a buffer for rows, kept from chunk to chunk since fresh pages are slow."""
    return replay.allocate_rows(BLOCK_ROWS + replay.MAX_PLIES + 2)


def release_buffers() -> None:
    """Free the row buffer of this process."""
    _row_buffer.cache_clear()


def part_name(index: int) -> str:
    """Return the name of a chunk's note."""
    return f"{index:05d}.json"


def _allocate_games(bounds: NDArray[np.int64]) -> replay.Games:
    """Return games of which nothing is known but where they begin, int64[G + 1]."""
    count = len(bounds) - 1
    return replay.Games(
        start=bounds,
        movetext=np.zeros(count, dtype=np.int64),
        result=np.full(count, UNKNOWN_RESULT, dtype=np.int8),
        base=np.full(count, -1, dtype=np.int32),
        setup=np.zeros(count, dtype=np.int32),
        status=np.full(count, replay.USED, dtype=np.uint8),
        plies=np.zeros(count, dtype=np.uint16),
        identity=np.zeros(count, dtype=np.uint64),
    )


def read_evaluations(
    text: NDArray[np.uint8], starts: NDArray[np.int64], config: IngestConfig
) -> Tagged:
    """Return lines of evaluated positions as games without tags, and filter them."""
    games, count = _allocate_games(np.append(starts, len(text))), len(starts)
    games.result[:] = replay.NO_RESULT
    unrated, unknown = np.zeros(count, dtype=np.int32), np.full(count, -1, dtype=np.int32)
    # no tags: one zero, broadcast, since reading 33 MB of them would take longer than a chunk's
    # FENs
    spans = np.broadcast_to(np.int64(0), (count, len(tags.TAGS), 2))
    parity, depth = np.full(count, NO_LABELS, dtype=np.uint8), np.zeros(count, dtype=np.int32)
    setups = np.empty((0, WORDS), dtype=np.uint64)
    is_player = np.zeros((count, 2), dtype=np.bool_)
    tagged = Tagged(text, games, spans, unrated, unrated, unknown, parity, setups, is_player, depth)
    apply_filters(
        GAME_FILTERS, GameColumns(text, tagged, config.seed), config, games.status, GAME_STATUS
    )
    return tagged


def _read_rows(tagged: Tagged, first: int, rows: replay.Rows) -> tuple[int, int]:
    """Make rows of games or evaluated positions; return (next game, rows filled)."""
    if tagged.depth is None:
        return replay.replay(tagged.text, tagged.games, tagged.setups, first, rows)
    last, filled = evaluation_rows.read_rows(tagged.text, tagged.games, tagged.depth, first, rows)
    tagged.games.identity[first:last] = splitmix64(tagged.games.identity[first:last])
    return last, filled


def read_games(text: NDArray[np.uint8], starts: NDArray[np.int64], config: IngestConfig) -> Tagged:
    """Read the tags of the games at `starts` and apply the filters that need no moves."""
    count = len(starts)
    bounds = np.append(starts, len(text))
    spans = np.zeros((count, len(tags.TAGS), 2), dtype=np.int64)
    games = _allocate_games(bounds)
    tags.scan_tags(text, bounds, spans, games.movetext)
    text = translate_movetext(text, games.movetext, bounds)
    read_results(text, spans[:, tags.RESULT], games)
    control = map_values(text, spans[:, tags.TIME_CONTROL], read_time_control, np.int32)
    games.base[:], increment = control.reshape(-1, 2).T
    white = numbers(text, spans[:, tags.WHITE_ELO], 0)
    black = numbers(text, spans[:, tags.BLACK_ELO], 0)
    setups = read_fens(text, spans, games)
    is_standard = matches(
        text, spans[:, tags.VARIANT], lambda variant: variant.strip().lower() in STANDARD
    )
    games.status[~is_standard] = replay.VARIANT
    parity = _read_parity(text, spans[:, tags.LABELS], games)
    is_player = find_players(text, spans, config.player)
    tagged = Tagged(text, games, spans, white, black, increment, parity, setups, is_player)
    apply_filters(
        GAME_FILTERS, GameColumns(text, tagged, config.seed), config, games.status, GAME_STATUS
    )
    return tagged


def _read_parity(
    text: NDArray[np.uint8], spans: NDArray[np.int64], games: replay.Games
) -> NDArray[np.uint8]:
    """Return which plies are labels in puzzles and the like, from their tag, uint8[G].

    Marks entries that could not be converted.
    """
    present = spans[:, 1] > 0
    number = numbers(text, spans, NO_LABELS)
    games.result[present] = replay.NO_RESULT
    games.status[present & (number > 1)] = replay.BAD_ROW
    return np.where(present & (number <= 1), number, NO_LABELS).astype(np.uint8)


def _identify_by_position(rows: replay.Rows, tagged: Tagged) -> None:
    """Identify puzzles and the like by their first position, so duplicates share a split."""
    games, parity = tagged.games, tagged.parity
    if (parity == NO_LABELS).all():
        return
    replayed = (games.status == replay.USED) & (games.plies > 0)
    # none that is a label
    games.status[replayed & (games.plies <= parity) & (parity != NO_LABELS)] = replay.NO_MOVES
    first = np.flatnonzero((rows.ply == parity[rows.game]) & (parity[rows.game] != NO_LABELS))
    games.identity[rows.game[first]] = splitmix64(rows.key[first])


def _drop_games_without_evals(rows: replay.Rows, tagged: Tagged) -> None:
    """Mark the games without any evaluation; the filter of rows drops their rows."""
    evaluated = np.zeros(len(tagged.games.status), dtype=np.bool_)
    evaluated[rows.game[rows["eval"] != NO_EVAL]] = True
    replayed = np.unique(rows.game)
    tagged.games.status[replayed[~evaluated[replayed]]] = GAME_STATUS.index("filter: no evals")


def _keep_rows(
    rows: replay.Rows, tagged: Tagged, config: IngestConfig
) -> tuple[NDArray[np.int64] | None, Counter[str]]:
    """Return the rows to keep (int64, ascending; None for all), and dropped ones by reason."""
    has_labels = bool((tagged.parity != NO_LABELS).any())
    if not has_labels and not active(ROW_FILTERS, config):
        return None, Counter()
    reason = np.full(len(rows), KEPT, dtype=np.uint8)
    if config.evals_only:
        _drop_games_without_evals(rows, tagged)
    if has_labels:
        wanted = tagged.parity[rows.game]
        reason[(wanted != NO_LABELS) & (rows.ply % 2 != wanted)] = NOT_LABELLED
    apply_filters(
        ROW_FILTERS, RowColumns(rows, tagged, config.seed, reason), config, reason, ROW_STATUS
    )
    counts = np.bincount(reason, minlength=len(ROW_STATUS)).tolist()
    return np.flatnonzero(reason == KEPT), +Counter(
        dict(zip(ROW_STATUS[1:], counts[1:], strict=True))
    )


def split_of(identity: NDArray[np.uint64], config: IngestConfig) -> NDArray[np.uint8]:
    """Return each game's split, an index into SPLITS, by the hash of its moves."""
    share = unit_interval(identity)
    return np.where(
        share < config.test_share, 2, np.where(share < config.test_share + config.val_share, 1, 0)
    ).astype(np.uint8)


def packed_of(rows: Mapping[str, NDArray[Any]]) -> NDArray[np.uint64]:
    """Return packed positions uint64[R, W] (dataset/files/stored_planes.py) of rows."""
    out_WR = np.empty((PACKED, len(rows["black"])), dtype=np.uint64)
    for bit in range(BOARDS):
        out_WR[bit] = rows[f"codes_{bit}"]
    out_WR[BOARDS] = rows["ep_file"]
    for name in ("castling", "black"):
        out_WR[BOARDS] <<= np.uint64(8)
        out_WR[BOARDS] |= rows[name]
    return out_WR.T


def _columns(
    tagged: Tagged, rows: Mapping[str, NDArray[Any]], first_game: int
) -> dict[str, NDArray[Any]]:
    """Return the columns of rows, with those that come from their games."""
    columns = replay.select_columns(rows)
    game = rows["game"].astype(np.int64)
    elo_2G = (
        np.stack([tagged.white_elo, tagged.black_elo], axis=1)
        .clip(0, 65535)
        .astype(np.uint16)
        .reshape(-1)
    )
    mover = 2 * game + rows["black"]
    base, increment = tagged.games.base, tagged.increment
    columns["game"] = game_numbers(game, first_game)
    columns["elo"] = elo_2G[mover]
    columns["opponent_elo"] = elo_2G[mover ^ 1]
    columns["base"] = base.astype(np.uint16)[game]  # -1 becomes 65535, which stands for null
    columns["increment"] = increment.astype(np.uint8)[game]
    return columns


def _write_block(
    publish: Publish,
    task: ChunkTask,
    tagged: Tagged,
    rows: replay.Rows,
    filled: int,
    kept: NDArray[np.int64] | None,
    block: int,
) -> list[dict[str, Any]]:
    """Write the kept rows of a block, a shard per split; return the manifest's entries."""
    splits = split_of(tagged.games.identity, task.config)[rows.game[:filled]]
    if kept is not None:
        splits[np.delete(np.arange(filled), kept)] = len(SPLITS)
    files, entries = _folder(task).files, []
    history = task.config.history if tagged.depth is None else 1
    earlier_RH = replay.earlier_moves(rows, filled, history)
    for number, split in enumerate(SPLITS):
        picked = np.flatnonzero(splits == number)
        if not len(picked):
            continue
        seed = (task.config.seed, task.chunk.index, block, number)
        picked = np.random.Generator(np.random.PCG64(seed)).permutation(picked)
        taken = Records(rows.view(replay.ROW, np.ndarray)).take(picked)
        columns = _columns(tagged, taken, task.chunk.first_game) | earlier_columns(
            earlier_RH, picked
        )
        name = f"{split}-{task.chunk.index:05d}-{block}.parquet"
        write = partial(write_packed, packed_of(taken), columns, task.config.planes)
        done = publish(files, name, len(picked), write)
        entries.append(
            {
                "name": name,
                "split": split,
                "rows": done.rows,
                "bytes": done.bytes,
                "sha256": done.sha256,
            }
        )
    return entries


def encode_chunk(task: ChunkTask) -> dict[str, Any]:
    """Turn a chunk into shards and a note; return the note with the number of new rows.

    Raises OtherDumpError if it was done from other text, and DatasetError if with other settings.
    """
    parts = _folder(task).notes
    note = parts / part_name(task.chunk.index)
    digest = hashlib.sha256(task.chunk.text).hexdigest()
    made_by = {"config": config_digest(task.config), "rows_version": ROWS_VERSION}
    if note.exists():
        done = read_note(note)
        if done["text_sha256"] != digest:
            raise OtherDumpError(
                f"the dump has changed since this ingest was begun (chunk {task.chunk.index})",
                remedy="choose another --out",
            )
        if any(done.get(name) != value for name, value in made_by.items()):
            raise DatasetError(OTHERS.format(out=task.out))
        return {**done, "fresh_rows": 0}
    text = np.frombuffer(task.chunk.text, dtype=np.uint8)
    read_tags = read_evaluations if task.chunk.is_evaluations else read_games
    tagged = read_tags(text, task.chunk.starts, task.config)
    rows = _row_buffer()
    files: list[dict[str, Any]] = []
    dropped: Counter[str] = Counter()
    total = collisions = game = block = 0
    with publish_behind() as publish:
        while game < len(task.chunk.starts):
            game, filled = _read_rows(tagged, game, rows)
            replayed: Any = rows[:filled]
            _identify_by_position(replayed, tagged)
            kept, refused = _keep_rows(replayed, tagged, task.config)
            dropped += refused
            files += _write_block(publish, task, tagged, rows, filled, kept, block)
            collisions += int(
                np.isin(rows.promotion[slice(filled) if kept is None else kept], (2, 3, 4)).sum()
            )
            total, block = total + (filled if kept is None else len(kept)), block + 1
        table = games_table(tagged, text, task.chunk, split_of(tagged.games.identity, task.config))
        games_name = f"games-{task.chunk.index:05d}.parquet"
        publish(
            parts,
            games_name,
            len(table),
            lambda target: pq.write_table(table, target, **write_options(table.schema)),
        )
    counts = np.bincount(tagged.games.status, minlength=len(GAME_STATUS))
    result = {
        "chunk": task.chunk.index,
        "text_sha256": digest,
        **made_by,
        "games": len(task.chunk.starts),
        "status": {
            name: int(count) for name, count in zip(GAME_STATUS, counts, strict=True) if count
        },
        "examples": find_examples(tagged, text, task.chunk),
        "rows": total,
        "rows_dropped": dict(dropped),
        "label_collisions": collisions,
        "files": files,
    }
    if task.config.player and not total:  # for the error if no chunk has a move of theirs
        result["names"] = count_names(text, tagged.spans, NAMES)
    publish_json(parts, note.name, result)
    return {**result, "fresh_rows": total}
