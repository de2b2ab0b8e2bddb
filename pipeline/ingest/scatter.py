"""Shards of a set number of rows, each drawn from the whole dump, in bounded memory.

    chunk 0 -> rows, each to a bucket by chance -> one file
    chunk 1 -> ...
    bucket 0, permuted | bucket 1, permuted | ...        the rows of a split in their new order
    |---- shard 0 ----|---- shard 1 ----|---- ...        cut into shards of one size, each made by a worker

To draw a bucket for each row, and then to permute each bucket, is to draw one permutation of all rows, each as likely as any
other (C. R. Rao, 1961; P. Sanders, "Random permutations on distributed, external and hierarchical memory", 1998). What is
drawn depends on the seed, the chunk and the bucket, so any number of workers, killed and started again, ends with the same
bytes. Memory is that of one shard's rows, or of ROWS_AT_ONCE, and of the buckets' sizes; the buckets lie in `.building/` and
take 37 bytes a row until it is done. A dump of which a bucket has more rows than that is read more than once:
`chunk_mib` makes more buckets (docs/scale.md).

Axes: R rows, W words of a packed position, B buckets, F files.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import zstandard
from numpy.typing import NDArray

from pipeline.dataset.files.columns import Form
from pipeline.dataset.files.plane_kernels import PACKED
from pipeline.dataset.files.shards import SHARD_NOTE, SPLITS, publish, publish_json, read_note, write_packed
from pipeline.errors import DatasetError
from pipeline.ingest.buckets import read_index, record_type, unpacked
from pipeline.ingest.chunk import IngestConfig, buckets_of, release_buffers
from pipeline.storage.building import PARTS, files_folder
from pipeline.storage.stores import place, read_span

ROWS_AT_ONCE = 1 << 20
"""Rows that small shards are made of together: a bucket of a large dump has rows of many, and is read once for all."""

MOST_SHARDS = 1_000_000
"""More would not go into a manifest that is read again."""


@dataclass(frozen=True, slots=True)
class ShardTask:
    """Shards to make: places in the new order of their split, and where the buckets with their rows lie."""

    out: str
    split: int
    form: Form
    history: int
    seed: int
    plan: str
    """What tells this work from that of other rows: a shard of another plan is made anew."""
    names: tuple[str, ...]
    """Names of the shards."""
    sizes: tuple[int, ...]
    """Rows of each."""
    offset: int
    """Rows of the first bucket that belong to the shard before."""
    first_bucket: int
    files: tuple[str, ...]
    begins: NDArray[np.int64]
    """[F] the byte at which these buckets begin in each file."""
    lengths: NDArray[np.uint32]
    """[F, B] bytes of each bucket."""
    counts: NDArray[np.uint32]
    """[F, B] rows of each bucket."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The shards of a split."""

    digest: str
    split: int
    files: tuple[str, ...]
    rows: int
    names: tuple[str, ...]


def plans(notes: Sequence[Mapping[str, Any]], config: IngestConfig) -> list[Plan]:
    """Say which shards there will be: of each split as many as `shard_rows` needs. `notes` are those of all chunks."""
    found = []
    told = [[note["chunk"], note["text_sha256"], note["loose"]] for note in notes]
    digest = hashlib.sha256(json.dumps(told).encode()).hexdigest()
    for number, split in enumerate(SPLITS):
        loose = [entry for note in notes for entry in note["loose"] if entry["split"] == split]
        rows = sum(entry["rows"] for entry in loose)
        shards = -(-rows // config.shard_rows)
        if shards > MOST_SHARDS:
            raise DatasetError(f"{rows:,} rows would be {shards:,} shards: ingest again with more shard_rows")
        names = tuple(f"{split}-{shard:05d}-of-{shards:05d}.parquet" for shard in range(shards))
        found.append(Plan(digest, number, tuple(entry["name"] for entry in loose), rows, names))
    return found


def forget_others(out: Path, planned: Iterable[Plan]) -> None:
    """Delete the shards of ours that another plan has left, as before the dump grew, and those that no note vouches for."""
    plan_of = {_note(out, name).name: plan.digest for plan in planned for name in plan.names}
    kept = []
    for note in sorted((out / PARTS).glob(f"{SHARD_NOTE}*.json")):
        if read_note(note, of_shard=True)["plan"] == plan_of.get(note.name):
            kept.append(note)
        else:
            note.unlink()
    named = {entry["name"] for note in kept for entry in read_note(note, of_shard=True)["files"]}
    for path in files_folder(out).glob("*-of-*.parquet"):
        if path.name not in named:
            path.unlink()


def _note(out: Path, shard: str) -> Path:
    return out / PARTS / f"{SHARD_NOTE}{shard.removesuffix('.parquet')}.json"


def shard_tasks(out: Path, where: str, planned: Iterable[Plan], config: IngestConfig) -> Iterator[ShardTask]:
    """Give the work of all splits, a task for some neighbouring shards, whose sizes differ by one row at most.

    `where` is `out` as a worker finds it. Raises DatasetError for a file of buckets that is damaged.
    """
    for plan in planned:
        buckets = buckets_of(config, plan.split)
        try:
            index_F2B = [read_index(out / PARTS / name, buckets) for name in plan.files]
        except (ValueError, FileNotFoundError) as error:
            raise DatasetError(f"{error}: delete {out} and ingest again") from error
        if not index_F2B:
            continue
        lengths_FB, counts_FB = (np.stack([one[part] for one in index_F2B]) for part in (0, 1))
        del index_F2B
        bounds = np.concatenate([[0], np.cumsum(counts_FB.sum(axis=0, dtype=np.int64))])
        if bounds[-1] != plan.rows:
            raise DatasetError(
                f"{out / PARTS} is damaged ({bounds[-1]} rows, not {plan.rows}): delete {out} and ingest again"
            )
        shards, together, reached = len(plan.names), max(1, ROWS_AT_ONCE // config.shard_rows), 0
        begins_F = np.zeros(len(plan.files), dtype=np.int64)
        for shard in range(0, shards, together):
            ends = [at * plan.rows // shards for at in range(shard, min(shard + together, shards) + 1)]
            low = int(np.searchsorted(bounds, ends[0], "right")) - 1
            high = int(np.searchsorted(bounds, ends[-1], "left"))
            begins_F += lengths_FB[:, reached:low].sum(axis=1, dtype=np.int64)
            reached = low
            yield ShardTask(
                out=where,
                split=plan.split,
                form=config.planes,
                history=config.history,
                seed=config.seed,
                plan=plan.digest,
                names=plan.names[shard : shard + together],
                sizes=tuple(last - first for first, last in pairwise(ends)),
                offset=ends[0] - int(bounds[low]),
                first_bucket=low,
                files=plan.files,
                begins=begins_F.copy(),
                lengths=lengths_FB[:, low:high].copy(),
                counts=counts_FB[:, low:high].copy(),
            )


def make_shards(task: ShardTask) -> list[dict[str, Any]]:
    """Read the rows of some shards from the buckets, each to its place, and publish them: give the manifest's entries.

    Raises DatasetError for a file of buckets that is damaged.
    """
    out = place(task.out)
    notes = [_note(out, name) for name in task.names]
    if all(note.exists() for note in notes):  # those of other plans are gone: `forget_others`
        return [entry for note in notes for entry in read_note(note, of_shard=True)["files"]]
    release_buffers()  # a worker of Ray has encoded chunks before
    columns, packed_RW = _rows(task, out)
    entries = []
    first = 0
    for name, size, note in zip(task.names, task.sizes, notes, strict=True):
        mine = slice(first, first + size)
        values = {column: values[mine] for column, values in columns.items()}
        written = publish(files_folder(out), name, size, partial(write_packed, packed_RW[mine], values, task.form))
        entry = {
            "name": name,
            "split": SPLITS[task.split],
            "rows": size,
            "bytes": written.bytes,
            "sha256": written.sha256,
        }
        publish_json(note.parent, note.name, {"plan": task.plan, "files": [entry]})
        entries.append(entry)
        first += size
    return entries


def _rows(task: ShardTask, out: Path) -> tuple[dict[str, NDArray[Any]], NDArray[np.uint64]]:
    """Read a task's rows in their new order: columns [R], and packed positions uint64[R, W]."""
    total, places = sum(task.sizes), _places(task)
    packed_RW = np.empty((total, PACKED), dtype=np.uint64)
    records_R = np.empty(total, dtype=record_type(task.history))
    taken_B = np.zeros(len(places), dtype=np.int64)
    filled = 0
    for file, name in enumerate(task.files):
        path, begin, at = out / PARTS / name, int(task.begins[file]), 0
        lengths_B, counts_B = task.lengths[file].tolist(), task.counts[file].tolist()
        try:
            data = read_span(path, begin, begin + sum(lengths_B))
        except FileNotFoundError as error:
            raise DatasetError(f"{path} is gone: delete {out} and ingest again") from error
        for bucket, (length, rows) in enumerate(zip(lengths_B, counts_B, strict=True)):
            if not rows:
                continue
            where_R = places[bucket][taken_B[bucket] : taken_B[bucket] + rows]
            try:
                records, positions = unpacked(data[at : at + length], rows, task.history)
            except (zstandard.ZstdError, ValueError) as error:
                raise DatasetError(f"{path} is damaged ({error}): delete {out} and ingest again") from error
            inside = (where_R >= 0) & (where_R < total)
            if not inside.all():  # a bucket at either end, which another task has a part of
                where_R, records, positions = where_R[inside], records[inside], positions[inside]
            records_R[where_R], packed_RW[where_R] = records, positions
            taken_B[bucket] += rows
            filled += len(where_R)
            at += length
    if filled != total:
        raise DatasetError(f"{out / PARTS} is damaged ({filled} rows, not {total}): delete {out} and ingest again")
    return {name: records_R[name] for name in records_R.dtype.names or ()}, packed_RW


def _places(task: ShardTask) -> list[NDArray[np.int64]]:
    """Draw where the rows of each bucket go, in the order of their files: a row of the task, or outside, to another's."""
    places, begin = [], -task.offset
    for bucket, rows in enumerate(task.counts.sum(axis=0, dtype=np.int64).tolist()):
        # A chunk's own draws end with the number of a split.
        seed = (task.seed, task.first_bucket + bucket, task.split, len(SPLITS))
        places.append(begin + np.random.Generator(np.random.PCG64(seed)).permutation(rows))
        begin += rows
    return places
