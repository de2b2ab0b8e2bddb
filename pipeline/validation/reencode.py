"""Encode games of a dump again, by ingest's own code in a temporary folder, and compare them with what is stored.

What is compared is every column of every row, and the games' table, in any order of rows; so a dataset made by
another version of the Parquet library passes too, as long as it says the same.

Axes: R rows.
"""

import json
import random
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pydantic import TypeAdapter, ValidationError

from engine.json_files import first_error, shown
from engine.progress import Progress, Stop, Tick, never, silent
from pipeline.dataset.files.columns import PIECE_COLUMNS, schema
from pipeline.dataset.files.shard_files import ShardReader, open_shard, reading
from pipeline.dataset.files.shards import GAMES, MANIFEST, PARTS, read_manifest
from pipeline.dataset.training_set import Shard, row_groups
from pipeline.dumps.reader import Chunk, Source, chunks
from pipeline.errors import DamagedError, DatasetError, IngestError, Stopped
from pipeline.executors.local import LocalEngine
from pipeline.ingest.chunk import ChunkTask, IngestConfig, encode_chunk, part_name
from pipeline.ingest.job import ingest

Manifest = Mapping[str, Any]
ORDER = [("game", "ascending"), ("ply", "ascending")]
_SHARD = re.compile(r"[a-z]+-(\d+)-(of-)?\d+\.parquet")
SHOWN = 5
"""Differing rows that are named for a chunk; the others are counted."""
LONGEST = 500
"""Characters that describe the differences of one row."""


def config_of(manifest: Manifest) -> IngestConfig:
    """Return the settings that a dataset was made with; raises DatasetError where this program has others."""
    stored = manifest["config"]
    strange = sorted(stored.keys() - {field.name for field in fields(IngestConfig)})
    try:
        if strange:
            raise ValueError(f"{shown(strange[0])} is no setting")
        return TypeAdapter(IngestConfig).validate_json(json.dumps(stored), strict=True)
    except ValidationError as error:
        raise DatasetError(f"{MANIFEST}: config.{first_error(error)}: it is damaged, or of another version") from None
    except ValueError as error:
        raise DatasetError(f"the dataset was made with settings that this program does not have: {error}") from error


def chunk_of(shard: str) -> int | None:
    """Return which chunk of the dump a shard is of: train-00007-0.parquet of 7; None for train-00007-of-00016, of the whole.

    Raises DatasetError for a name that is no shard's.
    """
    named = _SHARD.fullmatch(shard)
    if named is None:
        raise DatasetError(f"{shard} is no name of a shard: the manifest is damaged")
    return None if named[2] else int(named[1])


def shards_of(manifest: Manifest, chunk: int | None) -> list[str]:
    """Return the names of the shards of a chunk of the dump; with None, of those made of the whole dump."""
    return [entry["name"] for entry in manifest["files"] if entry["split"] and chunk_of(entry["name"]) == chunk]


def first_chunks(directory: Path, manifest: Manifest, limit: int | None) -> tuple[list[str], int]:
    """Return the shards with rows of the dump's first `limit` chunks (None: all), and the number of games before the next.

    A chunk's games are a row group of `games.parquet`.
    """
    names = [entry["name"] for entry in manifest["files"] if entry["rows"] and entry["split"]]
    if limit is None:
        return names, int(manifest["games"]["read"])
    with reading(directory / GAMES, "a table of games"):
        groups = pq.read_metadata(directory / GAMES)
    games = sum(groups.row_group(group).num_rows for group in range(min(limit, groups.num_row_groups)))
    return [name for name in names if (chunk_of(name) or 0) < limit], games


def _table(paths: Iterable[Path], games: Sequence[int] | None = None) -> pa.Table:
    """Read shards into one table by game and ply, with the split as a column; of the named games only, if any are."""
    parts = []
    for path in paths:
        with open_shard(path) as reader:
            for group in range(len(reader.groups)):
                rows = reader.table(group) if games is None else _rows_of(reader, group, games)
                split = pa.array([path.name.split("-")[0]] * len(rows), pa.string())
                parts.append(rows.append_column("split", split))
    whole = pa.concat_tables(parts) if parts else None
    return whole.sort_by(ORDER) if whole is not None else None


def _rows_of(reader: ShardReader, group: int, games: Sequence[int]) -> pa.Table:
    """Read the rows of the named games; where a row group has none, which one column tells, no other column is read."""
    wanted = pc.is_in(reader.table(group, ["game"])["game"], pa.array(games, pa.uint32()))
    return (
        reader.table(group).filter(wanted)
        if pc.any(wanted).as_py()
        else schema(reader.form, reader.optional).empty_table()
    )


def _rows_differ(stored: pa.Table | None, fresh: pa.Table | None) -> list[str]:
    """Return how two tables of the same games' rows differ, a line each."""
    if stored is None or fresh is None:
        counts = [0 if table is None else len(table) for table in (stored, fresh)]
        return [] if stored is fresh else [f"{counts[0]} rows are stored, not {counts[1]}"]
    if stored.schema.names != fresh.schema.names:
        return [f"the columns are {', '.join(stored.schema.names)}"]
    names, expected = (
        [f"game {row['game']}, ply {row['ply']}" for row in table.select(["game", "ply"]).to_pylist()]
        for table in (stored, fresh)
    )
    if names == expected:
        return _values_differ(stored, fresh, names)
    known, wanted = set(names), set(expected)
    lines = [f"{name}: is not stored" for name in [name for name in expected if name not in known][:SHOWN]]
    lines += [f"{name}: is not of the dump" for name in [name for name in names if name not in wanted][:SHOWN]]
    return [*lines, f"{len(stored)} rows are stored where the dump gives {len(fresh)}"]


def _values_differ(stored: pa.Table, fresh: pa.Table, names: Sequence[str]) -> list[str]:
    """Return a line for each of the first rows whose values differ, and the number of the others.

    Both tables have the same columns and as many rows, which `names` names.
    """
    problems: dict[int, list[str]] = {}
    for column in stored.schema.names:
        mine, theirs = stored[column].combine_chunks(), fresh[column].combine_chunks()
        if mine.equals(theirs):
            continue
        for row, (found, wanted) in enumerate(zip(mine.to_pylist(), theirs.to_pylist(), strict=True)):
            if found != wanted:
                problems.setdefault(row, []).append(_difference(column, found, wanted))
    lines = [f"{names[row]}: {'; '.join(problems[row])[:LONGEST]}" for row in sorted(problems)]
    return lines[:SHOWN] + ([f"and {len(lines) - SHOWN} more differ"] if len(lines) > SHOWN else [])


def _difference(column: str, found: Any, wanted: Any) -> str:
    """Return how one value differs."""
    if isinstance(found, bytes) or column in PIECE_COLUMNS:
        return f"{column} differs"
    return f"{column} is {found!r}, not {wanted!r}"


# ---------------------------------------------------------------- all of it


@dataclass(frozen=True, slots=True)
class _Comparison:
    """A chunk to encode again, and the dataset to compare it with."""

    chunk: Chunk
    directory: str
    names: tuple[str, ...]
    hashes: tuple[str, ...]
    config: IngestConfig


def compare_chunk(task: _Comparison) -> tuple[int, list[str]]:
    """Encode a chunk again and compare: give how many rows were compared, and problems."""
    directory = Path(task.directory)
    with tempfile.TemporaryDirectory(prefix="fianchetto-verify-") as name:
        folder = Path(name)
        record = _encode(task.chunk, folder, task.config)
        problems = _games_differ(directory, folder, task.chunk)
        made = {entry["name"]: entry["sha256"] for entry in record["files"]}
        if made == dict(zip(task.names, task.hashes, strict=True)):  # and these are what the files' hashes are, too
            return record["rows"], problems
        stored = _table(directory / name for name in task.names)
        problems += _rows_differ(stored, _table(folder / name for name in made))
    return record["rows"], problems


def _encode(chunk: Chunk, folder: Path, config: IngestConfig) -> dict[str, Any]:
    """Encode a chunk into a folder and return its record."""
    (folder / PARTS).mkdir()
    encode_chunk(ChunkTask(chunk, str(folder), config))
    record: dict[str, Any] = json.loads((folder / PARTS / part_name(chunk.index)).read_bytes())
    return record


def _games_differ(directory: Path, folder: Path, chunk: Chunk) -> list[str]:
    """Compare the rows of `games.parquet` for a chunk, which are one of its row groups."""
    fresh = pq.read_table(folder / PARTS / f"games-{chunk.index:05d}.parquet")
    with reading(directory / GAMES, "a table of games"), pq.ParquetFile(directory / GAMES) as file:
        if chunk.index >= file.num_row_groups:
            return [f"{GAMES}: the games from number {chunk.first_game} on are missing"]
        stored = file.read_row_group(chunk.index)
        stored.validate(full=True)
        for field in stored.schema:  # columns that only other chunks of the dataset fill
            if field.name not in fresh.schema.names:
                fresh = fresh.append_column(field, pa.nulls(len(fresh), field.type))
        fresh = fresh.select(stored.schema.names).cast(stored.schema)
    first = chunk.first_game
    if len(stored) != len(fresh):
        return [f"{GAMES}: holds {len(stored)} games where the dump gives {len(fresh)}, from number {first} on"]
    names = [f"game {game}" for game in range(first, first + len(stored))]
    return [f"{GAMES}: {line}" for line in _values_differ(stored, fresh, names)]


def compare_all(
    directory: Path,
    manifest: Manifest,
    sources: Sequence[str],
    *,
    workers: int = 0,
    progress: Progress = silent,
    stop: Stop = never,
) -> tuple[int, list[str]]:
    """Encode the whole dump again, chunk by chunk over `workers`, and compare: rows compared, and problems.

    Shards of a set size are all made again, in a temporary folder (TMPDIR) that takes 2.3 times the room of the dataset.
    """
    config = config_of(manifest)
    if config.shard_rows:
        return _compare_whole(directory, manifest, sources, config, workers, progress, stop)
    hashes = {entry["name"]: entry["sha256"] for entry in manifest["files"]}
    opened = [Source(name) for name in sources]
    taken, raw = 0, 0
    total = sum(source.size or 0 for source in opened)

    def read(count: int) -> None:
        nonlocal raw
        raw = count

    def tasks() -> Iterator[_Comparison]:
        nonlocal taken
        for chunk in chunks(opened, config.chunk_mib << 20, read):
            names = tuple(shards_of(manifest, chunk.index))
            taken = chunk.index + 1
            yield _Comparison(chunk, str(directory), names, tuple(hashes[name] for name in names), config)

    rows, problems = 0, []
    with closing(LocalEngine(workers).map(compare_chunk, tasks())) as results:
        for index, status, value in results:
            if status == "ok":
                rows += value[0]
                problems += value[1]
            else:
                said = "its worker was killed three times (out of memory?)" if value is None else value.message
                problems.append(f"chunk {index} cannot be compared: {said}")
            progress(Tick(raw, total, "B", {"positions": rows, "problems": len(problems)}))
            if stop():
                raise Stopped(f"stopped after {rows:,} rows, {len(problems)} problems so far")
    made = set(range(taken))
    if left := [name for name in hashes if name != GAMES and chunk_of(name) not in made]:
        problems.append(f"{left[0]} and {len(left) - 1} more files are of no part of the dump: it has become shorter")
    return rows, problems


def _compare_whole(
    directory: Path,
    manifest: Manifest,
    sources: Sequence[str],
    config: IngestConfig,
    workers: int,
    progress: Progress,
    stop: Stop,
) -> tuple[int, list[str]]:
    """Make a dataset of set shards again and compare file by file: rows compared, and problems."""
    with tempfile.TemporaryDirectory(prefix="fianchetto-verify-") as name:
        folder = Path(name)
        try:
            again = ingest(sources, folder, config, workers=workers, progress=progress, stop=stop)
        except DamagedError:  # what is before the damage is compared
            again = read_manifest(folder)
        except Stopped as error:
            raise Stopped("stopped; no row was compared") from error
        except IngestError as error:  # which says how to go on with what is thrown away here
            why = str(error).partition(": what was finished")[0]
            raise IngestError(f"the dump could not be encoded again to compare it: {why}") from error
        made, stored = ({entry["name"]: entry["sha256"] for entry in one["files"]} for one in (again, manifest))
        problems = [f"{lost}: is not what the dump gives" for lost in sorted(stored.keys() - made.keys())]
        problems += [f"{lost}: is missing" for lost in sorted(made.keys() - stored.keys())]
        for shared in sorted(stored.keys() & made.keys()):
            if stored[shared] == made[shared]:
                continue
            if shared != GAMES:
                problems += _rows_differ(_table([directory / shared]), _table([folder / shared]))
            elif not pq.read_table(directory / GAMES).equals(pq.read_table(folder / GAMES)):
                problems.append(f"{GAMES}: differs from what the dump gives")
        return again["positions"]["total"], problems


# ---------------------------------------------------------------- a sample


def sample_games(
    directory: Path, manifest: Manifest, count: int, chunk_limit: int | None = None
) -> dict[int | None, list[int]]:
    """Return games drawn from a few shards by a fixed seed: chunk number -> ascending game numbers.

    With `chunk_limit`, only games of the dump's first chunks are drawn.
    """
    rng = random.Random(0)  # noqa: S311
    files, before = first_chunks(directory, manifest, chunk_limit)
    picked = rng.sample(files, min(8, count, len(files)))
    found: dict[int | None, set[int]] = {}
    for name in picked:
        groups = row_groups([Shard(directory / name)], ("game",))
        games = np.unique(np.concatenate([rows["game"] for rows in groups]))
        games = games[games < before]
        drawn = rng.sample(games.tolist(), min(len(games), -(-count // len(picked))))
        found.setdefault(chunk_of(name), set()).update(drawn)
    return {chunk: sorted(found[chunk]) for chunk in sorted(found, key=lambda chunk: chunk or 0)}


def compare_games(
    directory: Path, manifest: Manifest, games: Sequence[int], texts: Mapping[int, bytes], chunk: int | None
) -> tuple[int, list[str]]:
    """Encode some games of a chunk again from their text and compare all their rows: rows compared, and problems."""
    known = [game for game in games if game in texts]
    if not known:
        return 0, []
    starts = np.cumsum([0, *(len(texts[game]) for game in known)])
    text = b"".join(texts[game] for game in known)
    again = Chunk(0, 0, 0, 0, text, starts[:-1].astype(np.int64))
    with tempfile.TemporaryDirectory(prefix="fianchetto-verify-") as name:
        folder = Path(name)
        record = _encode(again, folder, replace(config_of(manifest), shard_rows=0))
        fresh = _table(folder / entry["name"] for entry in record["files"])
        if fresh is not None:  # its games are numbered from 0
            numbers = pa.array(np.asarray(known, dtype=np.uint32)[fresh["game"].to_numpy()])
            at = fresh.schema.get_field_index("game")
            fresh = fresh.set_column(at, fresh.schema.field(at), numbers)
    stored = _table((directory / name for name in shards_of(manifest, chunk)), known)
    return len(stored) if stored is not None else 0, _rows_differ(stored, fresh)
