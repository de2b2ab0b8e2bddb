"""Read shards as shuffled batches that resume exactly at any step.

    row groups in a random order -> blocks of many groups -> rows in a random order within a block

The rows form one endless sequence that depends only on (seed, files), with each row once per epoch.
Step k begins at row k * batch_size, so a killed and resumed run sees the same batches as an
uninterrupted one. With several processes, each has such a sequence over its share of the row
groups, and a batch consists of one part from each process.

A batch is a dict of numpy arrays by column, as `ShardReader.read` returns them.
"""

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import islice
from pathlib import Path
from threading import Event

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

from engine.encoding.planes import PLANES
from engine.encoding.views import NO_LABEL
from pipeline.dataset.dataset import Dataset, Shard
from pipeline.dataset.files.columns import COLUMNS, OPTIONAL
from pipeline.dataset.files.kernels import PACKED_WORDS, Records, gather_rows, record_type
from pipeline.dataset.files.manifest import damaged_file_error
from pipeline.dataset.files.shards import Batch
from pipeline.dataset.files.stored_planes import InvalidRowError, unpack
from pipeline.errors import ConfigError, DatasetError
from pipeline.storage.stores import is_local

BLOCK_ROWS = 1 << 18
"""Rows that are shuffled together: 161 MB of planes, or 10 MB of packed positions. There are two
blocks in memory, one of them read ahead."""

MAX_CACHED_FOOTERS = 256
"""Maximum number of cached footers, about 200 kB each."""
SHUFFLE_STREAM, SAMPLE_STREAM = 0x6B6C62, 0x64726E
"""Tags of the random streams. Each stream needs its own, because numpy's seeds (0, 0, 0) and
(0, 0, 0, 0) give the same stream: without tags, this shuffle undid the one of ingest."""

HUMAN_COLUMNS = tuple(name for name in COLUMNS if name not in ("visits", "root_value"))
"""Default columns of a batch: all columns that human games fill."""


@dataclass(frozen=True, slots=True)
class _Part:
    """Rows of a row group: all of them, except at the ends of a process's share of an epoch."""

    shard: Shard
    group: int
    first: int
    last: int

    @property
    def rows(self) -> int:
        return self.last - self.first

    @property
    def is_whole(self) -> bool:
        return self.shard.wanted is None and self.rows == self.shard.groups[self.group]


class _Block:
    """Rows that are shuffled together; the memory is reused for later blocks.

    All numeric columns except the planes are stored as records, so that a random row costs two
    cache misses instead of eighteen.
    """

    def __init__(self, columns: Sequence[str], largest: int, *, packed: bool) -> None:
        """Allocate `largest` rows, with planes as packed positions or unpacked."""
        self.columns, self.largest, self.packed = columns, largest, packed
        rows = largest if "planes" in columns else 0
        self.planes_RP = np.empty((rows, PACKED_WORDS if packed else PLANES), dtype=np.uint64)
        self.records: Records | None = None
        self.objects: dict[str, NDArray[np.object_]] = {}
        self.order_R = np.empty(0, dtype=np.int64)
        """The shuffled order of the rows."""
        self.sources: list[tuple[int, Path]] = []
        """End row and file of each row group."""

    def put(self, rows: slice, columns: Batch) -> None:
        """Store columns in the given rows."""
        numbers = {name: values for name, values in columns.items() if name != "planes"}
        for name in [name for name, values in numbers.items() if values.dtype == object]:
            objects = self.objects.setdefault(name, np.empty(self.largest, dtype=object))
            objects[rows] = numbers.pop(name)
        if numbers:
            if self.records is None:
                kinds = {name: values.dtype for name, values in numbers.items()}
                self.records = Records(np.empty(self.largest, dtype=record_type(kinds)))
            for name, values in numbers.items():
                self.records.records_R[name][rows] = values
        planes = columns.get("planes")
        if planes is not None and planes.base is not self.planes_RP:
            self.planes_RP[rows] = planes

    def take(self, first: int, last: int) -> Batch:
        """Return the rows `first` to `last` - 1 of the shuffled order."""
        picked = self.order_R[first:last]
        batch: Batch = {} if self.records is None else self.records.take(picked)
        batch |= {name: values[picked] for name, values in self.objects.items()}
        if "planes" in self.columns:
            words_RW = np.empty((len(picked), self.planes_RP.shape[1]), dtype=np.uint64)
            gather_rows(self.planes_RP, picked, words_RW)
            batch["planes"] = self._unpack(words_RW, picked, batch) if self.packed else words_RW
        return {name: batch[name] for name in self.columns}

    def _unpack(
        self, words_RW: NDArray[np.uint64], picked: NDArray[np.int64], batch: Batch
    ) -> NDArray[np.uint64]:
        """Return the planes of packed rows; raises DatasetError, naming the file, if invalid."""
        try:
            return unpack(words_RW, batch.get("label", np.empty(0, dtype=np.uint16)))
        except InvalidRowError as error:
            path = next(path for end, path in self.sources if picked[error.row] < end)
            raise damaged_file_error(f"{path} cannot be read as a shard ({error.why})") from error


def require_distinct(paths: Iterable[Path]) -> None:
    """Raise ConfigError if a shard would be read twice."""
    found: set[str] = set()
    for path in paths:
        place = str(path.resolve()) if is_local(path) else str(path)
        if place in found:
            why = "is named twice, perhaps within a training set: name each dataset once"
            raise ConfigError(f"{path.parent} {why}")
        found.add(place)


def require_divisible(batch_size: int, rank: int, world: int) -> None:
    """Raise ConfigError if a batch cannot be divided among so many processes."""
    if batch_size < 1 or not 0 <= rank < world or batch_size % world:
        whom = f"{world} processes (this is process {rank})"
        raise ConfigError(f"a batch of {batch_size} rows cannot be divided equally among {whom}")


def take_rows(batch: Batch, rows: slice | NDArray[np.int64]) -> Batch:
    """Return some rows of a batch."""
    return {name: values[rows] for name, values in batch.items()}


def concatenate(parts: Sequence[Batch]) -> Batch:
    """Return the rows of several batches with the same columns."""
    if len(parts) == 1:
        return parts[0]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _slices(rows: Batch, count: int, size: int) -> Iterator[Batch]:
    """Yield `count` rows in batches of `size`; the last one may be smaller."""
    for at in range(0, count, size):
        yield take_rows(rows, slice(at, at + size))


class Batches:
    """Batches of one split of one or more datasets or training sets."""

    def __init__(
        self,
        datasets: Sequence[Path | Dataset],
        split: str = "train",
        *,
        batch_size: int = 512,
        seed: int = 0,
        rank: int = 0,
        world: int = 1,
        columns: Sequence[str] = HUMAN_COLUMNS,
        block_rows: int | None = None,
        people_only: bool = False,
    ) -> None:
        """Find the shards of datasets, given as opened datasets or as folders.

        Process `rank` of `world` gets an equal part of every batch, from separate row groups. With
        `people_only`, engine moves become NO_LABEL. Raises DatasetError for a missing dataset or an
        unknown or empty split. Raises ConfigError for an unknown column, a batch that cannot be
        divided, or fewer rows than processes.
        """
        require_divisible(batch_size, rank, world)
        if not columns:
            raise ConfigError("columns is empty: name at least one column to read")
        if unknown := [name for name in columns if name not in (*COLUMNS, *OPTIONAL)]:
            known = ", ".join((*COLUMNS, *OPTIONAL))
            raise ConfigError(f"unknown column {unknown[0]!r}: choose from {known}")
        opened = [Dataset.open(dataset) for dataset in datasets]
        shards = [shard for dataset in opened for shard in dataset.require_shards(split)]
        require_distinct(shard.path for shard in shards)
        self.groups = [
            _Part(shard, group, 0, rows)
            for shard in shards
            for group, rows in enumerate(shard.groups)
        ]
        self.rows = sum(group.rows for group in self.groups)
        """Rows of one epoch."""
        if self.rows < world:
            raise ConfigError(f"{self.rows} rows cannot be divided among {world} processes")
        self.share = (self.rows * rank // world, self.rows * (rank + 1) // world)
        """Range of this process's rows in an epoch, in the epoch's order of row groups."""
        self.batch_size, self.seed, self.rank, self.world = batch_size, seed, rank, world
        self.block_rows, self.people_only = block_rows or BLOCK_ROWS, people_only
        self.columns = list(dict.fromkeys(columns))
        self.packed = "planes" in columns and all(shard.form == "compact" for shard in shards)
        """Whether rows are shuffled as packed positions and unpacked to planes batch by batch."""

        @lru_cache(MAX_CACHED_FOOTERS)
        def read_footer(shard: Shard) -> pq.FileMetaData:
            with shard.open() as reader:
                return reader.file.metadata

        self._read_footer = read_footer

    def _parts(self, epoch: int) -> Iterator[_Part]:
        """Yield this process's row groups of an epoch in a random order.

        All processes split the same order of row groups at the bounds of their `share`. Each row
        belongs to one process, and only the groups at a bound are read by two.
        """
        first, last = self.share
        begin = 0
        random = np.random.Generator(np.random.PCG64((self.seed, epoch)))
        for index in random.permutation(len(self.groups)):
            group = self.groups[index]
            low, high = max(first - begin, 0), min(last - begin, group.rows)
            if low < high:
                yield replace(group, first=low, last=high)
            begin += group.rows

    def _blocks(self, epoch: int) -> list[list[_Part]]:
        """Return this process's row groups of an epoch in blocks of about `block_rows` rows."""
        blocks: list[list[_Part]] = [[]]
        rows = 0
        for part in self._parts(epoch):
            if rows >= self.block_rows:
                blocks.append([])
                rows = 0
            blocks[-1].append(part)
            rows += part.rows
        return blocks

    def _read(
        self, closing: Event, block: _Block, parts: Sequence[_Part], epoch: int, number: int
    ) -> _Block:
        at, block.sources = 0, []
        for part in parts:
            if closing.is_set():  # the stream was closed
                return block
            rows = slice(at, at + part.rows)
            planes_RP = block.planes_RP[rows] if part.is_whole else None
            block.put(rows, self._rows(part, planes_RP, packed=self.packed))
            at += part.rows
            block.sources.append((at, part.shard.path))
        seed = (self.seed, epoch, number, SHUFFLE_STREAM, *([self.rank] if self.rank else []))
        places = np.random.Generator(np.random.PCG64(seed)).permutation(at)
        block.order_R = np.empty(at, dtype=np.int64)
        block.order_R[places] = np.arange(at)
        return block

    def _rows(
        self, part: _Part, planes_RP: NDArray[np.uint64] | None = None, *, packed: bool = False
    ) -> Batch:
        """Return a part's rows, with planes in `planes_RP` if given, or as packed positions."""
        shard = part.shard
        with shard.open(self._read_footer(shard)) as reader:
            rows = reader.read(part.group, self.columns, shard.games, planes_RP, packed=packed)
        if self.people_only and shard.by_engine and "label" in rows:
            rows["label"] = np.full_like(rows["label"], NO_LABEL)
        if len(rows[self.columns[0]]) != shard.groups[part.group]:
            why = "does not have the games that its training set lists: join the datasets again"
            raise DatasetError(f"{shard.path} {why}")
        return take_rows(rows, slice(part.first, part.last))

    def _epochs(self, epoch: int, skip: int) -> Iterator[tuple[_Block, int]]:
        """Yield shuffled blocks from row `skip` of an epoch on, each with the first row to use.

        A block is valid until the second next one is requested: its memory is reused, since new
        pages cost more than copying the rows.
        """

        def plan() -> Iterator[tuple[list[_Part], int, int, int]]:
            epoch_number, left = epoch, skip
            while True:
                for number, parts in enumerate(self._blocks(epoch_number)):
                    rows = sum(part.rows for part in parts)
                    if left >= rows:
                        left -= rows
                        continue
                    yield parts, epoch_number, number, left
                    left = 0
                epoch_number += 1

        largest_group = max(group.rows for group in self.groups)
        largest = min(self.share[1] - self.share[0], self.block_rows + largest_group)
        now, later = (_Block(self.columns, largest, packed=self.packed) for _ in range(2))
        closing = Event()
        with ThreadPoolExecutor(1, "read-ahead") as reader, ExitStack() as at_end:
            at_end.callback(closing.set)
            steps = plan()
            parts, *where, left = next(steps)
            ahead = reader.submit(self._read, closing, now, parts, *where)
            while True:
                current, drop = ahead.result(), left
                parts, *where, left = next(steps)
                ahead = reader.submit(self._read, closing, later, parts, *where)
                now, later = later, now
                yield current, drop

    def from_step(self, step: int) -> Iterator[Batch]:
        """Yield this process's part of every batch from `step` on, endlessly."""
        size = self.batch_size // self.world
        epoch, skip = divmod(step * size, self.share[1] - self.share[0])
        parts: list[Batch] = []
        have = 0
        for block, first in self._epochs(epoch, skip):
            rows, at = len(block.order_R), first
            while rows - at >= (need := size - have):
                whole = block.take(at, at + need)
                yield concatenate([*parts, whole])  # a batch may start in the previous block
                parts, have = [], 0
                at += need
            if at < rows:
                parts.append(block.take(at, rows))
                have += rows - at

    def __len__(self) -> int:
        return -(-(self.share[1] - self.share[0]) // (self.batch_size // self.world))

    def __iter__(self) -> Iterator[Batch]:
        """Yield one shuffled epoch, the same each time; the last batch may be smaller."""
        size, left = self.batch_size // self.world, self.share[1] - self.share[0]
        for batch in islice(self.from_step(0), len(self)):
            yield take_rows(batch, slice(left))
            left -= size

    def read_rows(self) -> Iterator[Batch]:
        """Yield every row in file order; the last batch of a row group may be smaller."""
        for group in self.groups:
            yield from _slices(self._rows(group), group.rows, self.batch_size)

    def sample(self, count: int) -> Iterator[Batch]:
        """Yield `count` distinct random rows (or all rows, if fewer) in file order."""
        rng = np.random.Generator(np.random.PCG64((self.seed, SAMPLE_STREAM)))
        chosen = np.sort(rng.choice(self.rows, min(count, self.rows), replace=False, shuffle=False))
        parts: list[Batch] = []
        have = first = 0
        for group in self.groups:
            low, high = np.searchsorted(chosen, (first, first + group.rows))
            if low < high:
                parts.append(take_rows(self._rows(group), chosen[low:high] - first))
                have += high - low
            first += group.rows
            if parts and (have >= self.batch_size or first == self.rows):
                yield from _slices(concatenate(parts), have, self.batch_size)
                parts, have = [], 0
