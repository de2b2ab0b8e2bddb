"""Encode games of a dump again, by ingest's own code in a folder that is thrown away, and compare with what is stored.

What is compared is every column of every row, and the games' table, whatever order the rows stand in; so a dataset made by
another version of the Parquet library passes too, as long as it says the same.

Axes: R rows.
"""

import json
import random
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from engine.progress import Progress, Tick, silent
from pipeline.chunk import ChunkTask, IngestConfig, encode_chunk, part_name
from pipeline.errors import DatasetError, Stopped
from pipeline.shards import GAMES, PARTS
from pipeline.sources import Chunk, Source, chunks
from pipeline.workers import LocalEngine

Manifest = Mapping[str, Any]
ORDER = [("game", "ascending"), ("ply", "ascending")]
SHOWN = 5
"""Rows that are named of a chunk that differs; the others are counted."""


def config_of(manifest: Manifest) -> IngestConfig:
    """Give the settings that a dataset was made with; raises DatasetError where this program has others."""
    values: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in manifest["config"].items()
    }
    try:
        return IngestConfig(**values)
    except (TypeError, ValueError) as error:
        raise DatasetError(f"the dataset was made with settings that this program does not have: {error}") from error


def shards_of(manifest: Manifest, chunk: int) -> list[str]:
    """Name the shards of a chunk of the dump: train-00007-0.parquet is of chunk 7."""
    return [
        entry["name"] for entry in manifest["files"] if entry["split"] and int(entry["name"].split("-")[1]) == chunk
    ]


def _table(paths: Iterable[Path], games: Sequence[int] | None = None) -> pa.Table:
    """Read shards into one table by game and ply, with the split as a column; of the named games only, if any are."""
    parts = []
    for path in paths:
        with pq.ParquetFile(path) as file:
            for group in range(file.num_row_groups):
                rows = file.read_row_group(group, use_threads=False)
                if games is not None:
                    rows = rows.filter(pc.is_in(rows["game"], pa.array(games, pa.uint32())))
                split = pa.array([path.name.split("-")[0]] * len(rows), pa.string())
                parts.append(rows.append_column("split", split))
    whole = pa.concat_tables(parts) if parts else None
    return whole.sort_by(ORDER) if whole is not None else None


def _rows_differ(stored: pa.Table | None, fresh: pa.Table | None) -> list[str]:
    """Say how two tables of the same games differ, row by row."""
    if stored is None or fresh is None:
        return (
            []
            if stored is fresh
            else [f"{0 if stored is None else len(stored)} rows are stored, not {len(fresh or [])}"]
        )
    if stored.schema.names != fresh.schema.names:
        return [f"the columns are {', '.join(stored.schema.names)}"]
    if stored.equals(fresh):
        return []
    places = [
        [(row["game"], row["ply"]) for row in table.select(["game", "ply"]).to_pylist()] for table in (stored, fresh)
    ]
    if places[0] != places[1]:
        lost, added = set(places[1]) - set(places[0]), set(places[0]) - set(places[1])
        named = [f"game {game}, ply {ply}: is not stored" for game, ply in sorted(lost)[:SHOWN]]
        named += [f"game {game}, ply {ply}: is not of the dump" for game, ply in sorted(added)[:SHOWN]]
        return [*named, f"{len(stored)} rows are stored where the dump gives {len(fresh)}"]
    problems: dict[int, list[str]] = {}
    for name in stored.schema.names:
        mine, theirs = stored[name].combine_chunks(), fresh[name].combine_chunks()
        if mine.equals(theirs):
            continue
        for row, (found, wanted) in enumerate(zip(mine.to_pylist(), theirs.to_pylist(), strict=True)):
            if found != wanted:
                problems.setdefault(row, []).append(_difference(name, found, wanted))
    lines = [
        f"game {places[0][row][0]}, ply {places[0][row][1]}: {'; '.join(problems[row])}" for row in sorted(problems)
    ]
    return lines[:SHOWN] + ([f"and {len(lines) - SHOWN} rows more of these games"] if len(lines) > SHOWN else [])


def _difference(name: str, found: Any, wanted: Any) -> str:
    """Say how one value differs."""
    if name != "planes":
        return f"{name} is {found}, not {wanted}"
    bad = np.flatnonzero(np.frombuffer(found, "<u8") != np.frombuffer(wanted, "<u8")).tolist()
    return f"planes {bad} differ"


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
        note = _encode(task.chunk, folder, task.config)
        problems = _games_differ(directory, folder, task.chunk)
        made = {entry["name"]: entry["sha256"] for entry in note["files"]}
        if made == dict(zip(task.names, task.hashes, strict=True)):  # and these are what the files' hashes are, too
            return note["rows"], problems
        stored = _table(directory / name for name in task.names)
        problems += _rows_differ(stored, _table(folder / name for name in made))
    return note["rows"], problems


def _encode(chunk: Chunk, folder: Path, config: IngestConfig) -> dict[str, Any]:
    """Encode a chunk into a folder and give its note."""
    (folder / PARTS).mkdir()
    encode_chunk(ChunkTask(chunk, str(folder), config))
    note: dict[str, Any] = json.loads((folder / PARTS / part_name(chunk.index)).read_bytes())
    return note


def _games_differ(directory: Path, folder: Path, chunk: Chunk) -> list[str]:
    """Compare the rows of `games.parquet` for a chunk, which are one of its row groups."""
    fresh = pq.read_table(folder / PARTS / f"games-{chunk.index:05d}.parquet")
    with pq.ParquetFile(directory / GAMES) as file:
        if chunk.index >= file.num_row_groups:
            return [f"{GAMES}: the games from number {chunk.first_game} on are missing"]
        stored = file.read_row_group(chunk.index)
    for field in stored.schema:  # columns that only other chunks of the dataset fill
        if field.name not in fresh.schema.names:
            fresh = fresh.append_column(field, pa.nulls(len(fresh), field.type))
    fresh = fresh.select(stored.schema.names).cast(stored.schema)
    if stored.equals(fresh):
        return []
    if len(stored) != len(fresh):
        return [
            f"{GAMES}: holds {len(stored)} games where the dump gives {len(fresh)}, from number {chunk.first_game} on"
        ]
    wrong = []
    for row, (found, wanted) in enumerate(zip(stored.to_pylist(), fresh.to_pylist(), strict=True)):
        differing = [
            f"{name} is {found[name]!r}, not {wanted[name]!r}" for name in found if found[name] != wanted[name]
        ]
        if differing:
            wrong.append(f"{GAMES}: game {chunk.first_game + row}: {'; '.join(differing)[:300]}")
    return wrong[:SHOWN] + ([f"{GAMES}: and {len(wrong) - SHOWN} games more"] if len(wrong) > SHOWN else [])


def compare_all(
    directory: Path,
    manifest: Manifest,
    sources: Sequence[str],
    *,
    workers: int = 0,
    progress: Progress = silent,
    stop: Callable[[], bool] = lambda: False,
) -> tuple[int, list[str]]:
    """Encode the whole dump again, chunk by chunk over `workers`, and compare: rows compared, and problems."""
    config = config_of(manifest)
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
    if left := [name for name in hashes if name != GAMES and int(name.split("-")[1]) >= taken]:
        problems.append(f"{left[0]} and {len(left) - 1} more files are of no part of the dump: it has become shorter")
    return rows, problems


# ---------------------------------------------------------------- a sample


def sample_games(
    directory: Path, manifest: Manifest, count: int, chunk_limit: int | None = None
) -> dict[int, list[int]]:
    """Draw games that have rows, the same ones each time: by the number of their chunk, from a few chunks.

    Only of the dump's first `chunk_limit` chunks, if that is given.
    """
    rng = random.Random(0)  # noqa: S311
    files = [entry["name"] for entry in manifest["files"] if entry["rows"] and entry["split"]]
    of_chunk = {name: int(name.split("-")[1]) for name in files}
    files = [name for name in files if chunk_limit is None or of_chunk[name] < chunk_limit]
    picked = rng.sample(files, min(8, count, len(files)))
    found: dict[int, list[int]] = {}
    for name in picked:
        games = np.unique(pq.read_table(directory / name, columns=["game"])["game"].to_numpy()).tolist()
        drawn = rng.sample(games, min(len(games), -(-count // len(picked))))
        found.setdefault(of_chunk[name], []).extend(drawn)
    return {chunk: sorted(games) for chunk, games in sorted(found.items())}


def compare_games(
    directory: Path, manifest: Manifest, games: Sequence[int], texts: Mapping[int, bytes], chunk: int
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
        note = _encode(again, folder, config_of(manifest))
        fresh = _table(folder / entry["name"] for entry in note["files"])
        if fresh is not None:  # its games are numbered from 0
            numbers = pa.array(np.asarray(known, dtype=np.uint32)[fresh["game"].to_numpy()])
            at = fresh.schema.get_field_index("game")
            fresh = fresh.set_column(at, fresh.schema.field(at), numbers)
    stored = _table((directory / name for name in shards_of(manifest, chunk)), known)
    return len(stored) if stored is not None else 0, _rows_differ(stored, fresh)
