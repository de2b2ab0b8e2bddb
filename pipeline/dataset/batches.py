"""Read shards as shuffled batches that resume exactly at any step.

    row groups in a random order -> blocks of many groups -> rows in a random order within a block

The rows form one endless sequence that depends only on the files, the seed and the size of blocks,
with each row once per epoch. Step k begins at row k * batch_size, so a killed and resumed run sees
the same batches as an uninterrupted one. With several processes, each reads a sequence over its own
share of the rows, and a batch consists of one part from each process.

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
from pipeline.dataset.files.columns import COLUMNS, OPTIONAL_COLUMNS
from pipeline.dataset.files.kernels import PACKED_WORDS, Records, gather_rows, make_record_type
from pipeline.dataset.files.manifest import damaged_file_error
from pipeline.dataset.files.shards import Batch
from pipeline.dataset.files.stored_planes import InvalidRowError, unpack_planes
from pipeline.errors import ConfigError, DatasetError
from pipeline.storage.stores import is_local

BLOCK_ROWS = 1 << 18
"""Number of rows that are shuffled together: 161 MB as planes, or 10 MB as packed positions. Two
such blocks are in memory, since the next one is read ahead."""

MAX_CACHED_FOOTERS = 256
"""Maximum number of Parquet footers in memory, about 200 kB each."""
SHUFFLE_STREAM, SAMPLE_STREAM = 0x6B6C62, 0x64726E
"""Tags in the seeds of the random streams. Each stream needs its own tag, because PCG64 returns the
same numbers for the seeds (0, 0, 0) and (0, 0, 0, 0): without tags, this shuffle would undo the
shuffle of ingest."""

HUMAN_COLUMNS = tuple(name for name in COLUMNS if name not in ("visits", "root_value"))
"""Default columns of a batch: all except those of a search, which human games do not have."""


@dataclass(frozen=True, slots=True)
class _Part:
    """The rows `first` to `last` - 1 of a row group.

    Only the parts at the two ends of a process's share are smaller than their row group.
    """

    shard: Shard
    group: int
    first: int
    last: int

    @property
    def rows(self) -> int:
        return self.last - self.first

    @property
    def is_whole(self) -> bool:
        return self.shard.wanted_games is None and self.rows == self.shard.groups[self.group]


class _Block:
    """Rows that are shuffled together, in memory that is reused for later blocks.

    All numeric columns except the planes are stored as records, so that reading a random row costs
    two cache misses instead of eighteen.
    """

    def __init__(self, columns: Sequence[str], capacity: int, *, packed: bool) -> None:
        """Allocate memory for `capacity` rows, with packed positions as planes if `packed`."""
        self.columns, self.capacity, self.packed = columns, capacity, packed
        rows = capacity if "planes" in columns else 0
        self.planes_RP = np.empty((rows, PACKED_WORDS if packed else PLANES), dtype=np.uint64)
        self.records: Records | None = None
        self.objects: dict[str, NDArray[np.object_]] = {}
        self.order_R = np.empty(0, dtype=np.int64)
        """Indices of the rows in shuffled order."""
        self.sources: list[tuple[int, Path]] = []
        """For each row group in the block: the row after its last one, and its file."""

    def store(self, rows: slice, columns: Batch) -> None:
        """Copy columns to the given rows; planes that were read into this block stay in place."""
        numbers = {name: values for name, values in columns.items() if name != "planes"}
        for name in [name for name, values in numbers.items() if values.dtype == object]:
            objects = self.objects.setdefault(name, np.empty(self.capacity, dtype=object))
            objects[rows] = numbers.pop(name)
        if numbers:
            if self.records is None:
                dtypes = {name: values.dtype for name, values in numbers.items()}
                self.records = Records(np.empty(self.capacity, dtype=make_record_type(dtypes)))
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
        """Unpack planes; raises DatasetError, with the file's name, for an invalid row."""
        try:
            return unpack_planes(words_RW, batch.get("label", np.empty(0, dtype=np.uint16)))
        except InvalidRowError as error:
            path = next(path for end, path in self.sources if picked[error.row] < end)
            raise damaged_file_error(f"{path} cannot be read as a shard ({error.why})") from error


def require_distinct(paths: Iterable[Path]) -> None:
    """Raise ConfigError if a shard would be read twice."""
    seen: set[str] = set()
    for path in paths:
        location = str(path.resolve()) if is_local(path) else str(path)
        if location in seen:
            why = "is named twice, perhaps within a training set: name each dataset once"
            raise ConfigError(f"{path.parent} {why}")
        seen.add(location)


def require_divisible(batch_size: int, rank: int, world: int) -> None:
    """Raise ConfigError unless a batch can be divided equally among `world` processes."""
    if batch_size < 1 or not 0 <= rank < world or batch_size % world:
        raise ConfigError(
            f"a batch of {batch_size} rows cannot be divided equally among {world} processes (this "
            f"is process {rank}): choose a multiple of the number of processes"
        )


def take_rows(batch: Batch, rows: slice | NDArray[np.int64]) -> Batch:
    """Return the given rows of a batch, as a slice or by index."""
    return {name: values[rows] for name, values in batch.items()}


def concatenate(parts: Sequence[Batch]) -> Batch:
    """Join several batches with the same columns into one."""
    if len(parts) == 1:
        return parts[0]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _split_rows(rows: Batch, count: int, size: int) -> Iterator[Batch]:
    for first in range(0, count, size):
        yield take_rows(rows, slice(first, first + size))


class Batches:
    """Shuffled batches of one split of one or more datasets or training sets."""

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

        Process `rank` of `world` gets an equal part of every batch; no two processes read the same
        row. With `people_only`, labels that are engine moves become NO_LABEL.

        Raises DatasetError for an unusable dataset or an unknown or empty split; ConfigError for a
        column or batch size that cannot be used, a repeated dataset, or fewer rows than processes.
        """
        require_divisible(batch_size, rank, world)
        if not columns:
            raise ConfigError("columns is empty: name at least one column to read")
        if unknown := [name for name in columns if name not in (*COLUMNS, *OPTIONAL_COLUMNS)]:
            choices = ", ".join((*COLUMNS, *OPTIONAL_COLUMNS))
            raise ConfigError(f"unknown column {unknown[0]!r}: choose from {choices}")
        opened = [Dataset.open(dataset) for dataset in datasets]
        shards = [shard for dataset in opened for shard in dataset.require_shards(split)]
        require_distinct(shard.path for shard in shards)
        self.groups = [
            _Part(shard, group, 0, rows)
            for shard in shards
            for group, rows in enumerate(shard.groups)
        ]
        self.rows = sum(group.rows for group in self.groups)
        """Number of rows in an epoch."""
        if self.rows < world:
            raise ConfigError(
                f"{self.rows} rows cannot be divided among {world} processes: use fewer processes"
            )
        self.share = (self.rows * rank // world, self.rows * (rank + 1) // world)
        """First and end position of this process's rows, in the epoch's order of row groups."""
        self.batch_size, self.seed, self.rank, self.world = batch_size, seed, rank, world
        self.block_rows, self.people_only = block_rows or BLOCK_ROWS, people_only
        self.columns = list(dict.fromkeys(columns))
        self.packed = "planes" in columns and all(
            shard.plane_format == "compact" for shard in shards
        )
        """Whether blocks hold packed positions, which are unpacked to planes batch by batch."""

        @lru_cache(MAX_CACHED_FOOTERS)
        def read_footer(shard: Shard) -> pq.FileMetaData:
            with shard.open() as reader:
                return reader.file.metadata

        self._read_footer = read_footer

    def _iterate_parts(self, epoch: int) -> Iterator[_Part]:
        """Yield this process's parts of an epoch in a random order.

        All processes draw the same order of row groups and cut it at the bounds of their `share`.
        Each row belongs to one process; only a row group at a bound is read by two.
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

    def _group_into_blocks(self, epoch: int) -> list[list[_Part]]:
        blocks: list[list[_Part]] = [[]]
        rows = 0
        for part in self._iterate_parts(epoch):
            if rows >= self.block_rows:
                blocks.append([])
                rows = 0
            blocks[-1].append(part)
            rows += part.rows
        return blocks

    def _read_block(
        self, closing: Event, block: _Block, parts: Sequence[_Part], epoch: int, number: int
    ) -> _Block:
        """Fill a block with the rows of its parts and draw their order; stop early if `closing`."""
        end, block.sources = 0, []
        for part in parts:
            if closing.is_set():
                return block
            rows = slice(end, end + part.rows)
            planes_RP = block.planes_RP[rows] if part.is_whole else None
            block.store(rows, self._read_part(part, planes_RP, packed=self.packed))
            end += part.rows
            block.sources.append((end, part.shard.path))
        seed = (self.seed, epoch, number, SHUFFLE_STREAM, *([self.rank] if self.rank else []))
        places = np.random.Generator(np.random.PCG64(seed)).permutation(end)
        block.order_R = np.empty(end, dtype=np.int64)
        block.order_R[places] = np.arange(end)
        return block

    def _read_part(
        self, part: _Part, planes_RP: NDArray[np.uint64] | None = None, *, packed: bool = False
    ) -> Batch:
        """Return the rows of a part; planes are written to `planes_RP`, if given and not packed."""
        shard = part.shard
        with shard.open(self._read_footer(shard)) as reader:
            rows = reader.read(part.group, self.columns, shard.games, planes_RP, packed=packed)
        if self.people_only and shard.by_engine and "label" in rows:
            rows["label"] = np.full_like(rows["label"], NO_LABEL)
        if len(rows[self.columns[0]]) != shard.groups[part.group]:
            why = "does not have the games that its training set lists: join the datasets again"
            raise DatasetError(f"{shard.path} {why}")
        return take_rows(rows, slice(part.first, part.last))

    def _iterate_blocks(self, epoch: int, skip: int) -> Iterator[tuple[_Block, int]]:
        """Yield shuffled blocks from row `skip` of an epoch on, each with the first row to use.

        A block is overwritten when the block after the next is requested: reusing memory is faster
        than allocating it.
        """

        def plan_blocks() -> Iterator[tuple[list[_Part], int, int, int]]:
            epoch_number, left = epoch, skip
            while True:
                for number, parts in enumerate(self._group_into_blocks(epoch_number)):
                    rows = sum(part.rows for part in parts)
                    if left >= rows:
                        left -= rows
                        continue
                    yield parts, epoch_number, number, left
                    left = 0
                epoch_number += 1

        largest_group = max(group.rows for group in self.groups)
        capacity = min(self.share[1] - self.share[0], self.block_rows + largest_group)
        now, later = (_Block(self.columns, capacity, packed=self.packed) for _ in range(2))
        closing = Event()
        with ThreadPoolExecutor(1, "read-ahead") as reader, ExitStack() as at_end:
            at_end.callback(closing.set)
            plans = plan_blocks()
            parts, *where, left = next(plans)
            ahead = reader.submit(self._read_block, closing, now, parts, *where)
            while True:
                current, drop = ahead.result(), left
                parts, *where, left = next(plans)
                ahead = reader.submit(self._read_block, closing, later, parts, *where)
                now, later = later, now
                yield current, drop

    def from_step(self, step: int) -> Iterator[Batch]:
        """Yield this process's part of every batch, endlessly, from batch `step` on."""
        size = self.batch_size // self.world
        epoch, skip = divmod(step * size, self.share[1] - self.share[0])
        parts: list[Batch] = []
        collected = 0
        for block, first in self._iterate_blocks(epoch, skip):
            rows, at = len(block.order_R), first
            while rows - at >= (missing := size - collected):
                last_part = block.take(at, at + missing)
                yield concatenate([*parts, last_part])  # earlier parts are of the previous block
                parts, collected = [], 0
                at += missing
            if at < rows:
                parts.append(block.take(at, rows))
                collected += rows - at

    def __len__(self) -> int:
        return -(-(self.share[1] - self.share[0]) // (self.batch_size // self.world))

    def __iter__(self) -> Iterator[Batch]:
        """Yield the first epoch; its last batch may be smaller."""
        size, left = self.batch_size // self.world, self.share[1] - self.share[0]
        for batch in islice(self.from_step(0), len(self)):
            yield take_rows(batch, slice(left))
            left -= size

    def read_rows(self) -> Iterator[Batch]:
        """Yield every row once, in file order; the last batch of a row group may be smaller."""
        for group in self.groups:
            yield from _split_rows(self._read_part(group), group.rows, self.batch_size)

    def sample(self, count: int) -> Iterator[Batch]:
        """Yield `count` distinct random rows (or all rows, if fewer) in file order."""
        rng = np.random.Generator(np.random.PCG64((self.seed, SAMPLE_STREAM)))
        chosen = np.sort(rng.choice(self.rows, min(count, self.rows), replace=False, shuffle=False))
        parts: list[Batch] = []
        collected = first = 0
        for group in self.groups:
            low, high = np.searchsorted(chosen, (first, first + group.rows))
            if low < high:
                parts.append(take_rows(self._read_part(group), chosen[low:high] - first))
                collected += high - low
            first += group.rows
            if parts and (collected >= self.batch_size or first == self.rows):
                yield from _split_rows(concatenate(parts), collected, self.batch_size)
                parts, collected = [], 0
