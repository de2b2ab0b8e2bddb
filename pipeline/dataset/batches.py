"""Read shards as shuffled batches that resume exactly at any step; the training device unpacks the
bits.

    row groups in a random order -> blocks of many groups -> batches of rows in a random order
    within the block

The rows form one endless sequence, fixed by (seed, files): epoch after epoch, each row once per
epoch. Step k begins at row k * batch_size, so a run that is killed and resumed sees the batches
that it would have seen. With several processes, each has such a sequence of its share of every
epoch's row groups; a batch is one part from each.

A batch is a dict of numpy arrays by column, as `pipeline.dataset.files.shards.batch_columns`
returns them.
"""

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from threading import Event

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

from engine.encoding.planes import PLANES
from engine.encoding.views import NO_LABEL
from pipeline.dataset.dataset import Dataset, Shard
from pipeline.dataset.files.columns import COLUMNS
from pipeline.dataset.files.kernels import PACKED, Records, gather_rows, record_type
from pipeline.dataset.files.shards import Batch, damaged
from pipeline.dataset.files.stored_planes import InvalidRowError, unpack
from pipeline.errors import ConfigError, DatasetError
from pipeline.storage.stores import is_local

BLOCK_ROWS = 1 << 18
"""Rows that are shuffled together: 161 MB of planes, or 10 MB of packed positions; one of two
blocks is read ahead."""

FOOTERS = 256
"""Footers that are cached, about 200 kB each."""

SHUFFLE_STREAM, SAMPLE_STREAM = 0x6B6C62, 0x64726E
"""Tags of the random streams. Each needs its own: numpy's seeds (0, 0, 0) and (0, 0, 0, 0) give the
same stream, and without tags the permutation that ingest shuffles a chunk by was undone here."""

HUMAN_COLUMNS = tuple(name for name in COLUMNS if name not in ("visits", "root_value"))
"""The default columns of a batch: all that human games fill."""


@dataclass(frozen=True, slots=True)
class _Group:
    """A row group of a shard."""

    shard: Shard
    index: int
    rows: int


@dataclass(frozen=True, slots=True)
class _Part:
    """Rows of a row group: all of them, except where a process's share of an epoch begins or
    ends.
    """

    group: _Group
    first: int
    last: int

    @property
    def rows(self) -> int:
        return self.last - self.first

    @property
    def is_whole(self) -> bool:
        return self.rows == self.group.rows and self.group.shard.wanted is None


class _Block:
    """Rows that are shuffled together, in the order they were read; its memory is reused for later
    blocks.

    All columns of numbers but the planes are stored as records, so that a random row costs two
    cache misses and not eighteen.
    """

    def __init__(self, columns: Sequence[str], largest: int, *, packed: bool) -> None:
        """Allocate `largest` rows, with planes as packed positions or as they are."""
        self.columns, self.largest, self.packed = columns, largest, packed
        self.planes_RP = np.empty(
            (largest if "planes" in columns else 0, PACKED if packed else PLANES), dtype=np.uint64
        )
        self.records: Records | None = None
        self.objects: dict[str, NDArray[np.object_]] = {}
        self.order_R = np.empty(0, dtype=np.int64)
        """The shuffled order of the rows."""
        self.sources: list[tuple[int, Path]] = []
        """For each row group, the row after its last one, and its file."""

    def put(self, rows: slice, columns: Batch) -> None:
        """Store the columns of some rows."""
        kinds = {
            name: kept.dtype
            for name, kept in columns.items()
            if name != "planes" and kept.dtype != object
        }
        if kinds and self.records is None:
            self.records = Records(np.empty(self.largest, dtype=record_type(kinds)))
        for name, values in columns.items():
            if name == "planes":
                if values.base is not self.planes_RP:
                    self.planes_RP[rows] = values
            elif values.dtype == object:
                self.objects.setdefault(name, np.empty(self.largest, dtype=object))[rows] = values
            elif self.records is not None:
                self.records.records_R[name][rows] = values

    def take(self, first: int, last: int) -> Batch:
        """Return the rows `first` to `last` of the shuffled order."""
        picked = self.order_R[first:last]
        taken = {} if self.records is None else self.records.take(picked)
        batch: Batch = {}
        for name in self.columns:
            if name == "planes":
                words = np.empty((len(picked), self.planes_RP.shape[1]), dtype=np.uint64)
                gather_rows(self.planes_RP, picked, words)
                batch[name] = (
                    self._unpack(words, picked, taken.get("label")) if self.packed else words
                )
            elif name in self.objects:
                batch[name] = self.objects[name][picked]
            else:
                batch[name] = taken[name]
        return batch

    def _unpack(
        self,
        words_RW: NDArray[np.uint64],
        picked: NDArray[np.int64],
        labels: NDArray[np.uint16] | None,
    ) -> NDArray[np.uint64]:
        """Return the planes of packed rows; raises DatasetError, with the file's name, for a row
        that is no position.
        """
        try:
            return unpack(words_RW, np.empty(0, dtype=np.uint16) if labels is None else labels)
        except InvalidRowError as error:
            path = next(path for end, path in self.sources if picked[error.row] < end)
            raise damaged(f"{path} cannot be read as a shard ({error.why})") from error


def require_distinct(paths: Iterable[Path]) -> None:
    """Raise ConfigError if a shard would be read twice, its dataset being named twice or joined
    too.
    """
    found: set[str] = set()
    for path in paths:
        place = str(path.resolve()) if is_local(path) else str(path)
        if place in found:
            raise ConfigError(
                f"{path.parent} is named twice, perhaps within a training set: name each dataset "
                f"once"
            )
        found.add(place)


def require_divisible(batch_size: int, rank: int, world: int) -> None:
    """Raise ConfigError if a batch cannot be divided among so many processes."""
    if batch_size < 1 or not 0 <= rank < world or batch_size % world:
        raise ConfigError(
            f"a batch of {batch_size} cannot be divided among {world} processes (this is number "
            f"{rank})"
        )


def _concatenate(parts: Sequence[Batch]) -> Batch:
    """Return the rows of several batches as one."""
    return (
        {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        if len(parts) > 1
        else parts[0]
    )


class Batches:
    """The batches of one split of some datasets or training sets."""

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
        """Find the shards of opened datasets, or of folders that are opened here.

        Process `rank` of `world` gets an equal part of every batch, from separate row groups. With
        `people_only`, labels that are an engine's moves become NO_LABEL. Raises DatasetError
        for a missing dataset or an unknown or empty split, ConfigError for a batch that cannot be
        divided and for fewer rows than processes.
        """
        require_divisible(batch_size, rank, world)
        opened = [Dataset.open(dataset) for dataset in datasets]
        shards = [shard for dataset in opened for shard in dataset.require_shards(split)]
        require_distinct(shard.path for shard in shards)
        self.groups = [
            _Group(shard, index, rows)
            for shard in shards
            for index, rows in enumerate(shard.groups)
        ]
        self.rows = sum(group.rows for group in self.groups)
        """Rows of one epoch."""
        if self.rows < world:
            raise ConfigError(f"{self.rows} rows cannot be divided among {world} processes")
        self.share = (self.rows * rank // world, self.rows * (rank + 1) // world)
        """First and last row of this process in an epoch, in the epoch's order of row groups."""
        self.batch_size, self.seed, self.rank, self.world = batch_size, seed, rank, world
        self.block_rows, self.people_only = block_rows or BLOCK_ROWS, people_only
        self.columns = list(dict.fromkeys(columns))
        self.packed = "planes" in columns and all(
            group.shard.form == "compact" for group in self.groups
        )
        """Whether rows are shuffled as packed positions, and planes computed batch by batch."""
        self._footers: OrderedDict[Path, pq.FileMetaData] = OrderedDict()

    def _parts(self, epoch: int) -> Iterator[_Part]:
        """Yield this process's row groups of an epoch in a random order.

        All processes cut the same order of all groups at the rows of their `share`. Each row
        belongs to one process, and only the groups at a cut are read by two.
        """
        first, last = self.share
        begin = 0
        for index in np.random.Generator(np.random.PCG64((self.seed, epoch))).permutation(
            len(self.groups)
        ):
            group = self.groups[index]
            low, high = max(first - begin, 0), min(last - begin, group.rows)
            if low < high:
                yield _Part(group, low, high)
            begin += group.rows

    def _blocks(self, epoch: int) -> list[list[_Part]]:
        """Return this process's row groups of an epoch in blocks of about `block_rows`."""
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
        """Read a block's rows and shuffle their order."""
        at, block.sources = 0, []
        for part in parts:
            if closing.is_set():  # the stream was closed
                return block
            rows = slice(at, at + part.rows)
            columns = self._rows(
                part.group, block.planes_RP[rows] if part.is_whole else None, packed=self.packed
            )
            if not part.is_whole:
                columns = {name: values[part.first : part.last] for name, values in columns.items()}
            block.put(rows, columns)
            at += part.rows
            block.sources.append((at, part.group.shard.path))
        seed = (self.seed, epoch, number, SHUFFLE_STREAM, *([self.rank] if self.rank else []))
        places = np.random.Generator(np.random.PCG64(seed)).permutation(at)
        block.order_R = np.empty(at, dtype=np.int64)
        block.order_R[places] = np.arange(at)
        return block

    def _rows(
        self, group: _Group, planes_RP: NDArray[np.uint64] | None = None, *, packed: bool = False
    ) -> Batch:
        """Return the rows of a group in their order, with planes in `planes_RP` if it is given;
        DatasetError if it is damaged.

        With `packed`, `planes` are packed positions.
        """
        shard = group.shard
        with shard.open(self._footers.get(shard.path)) as reader:
            self._footers[shard.path] = reader.file.metadata
            self._footers.move_to_end(shard.path)
            if len(self._footers) > FOOTERS:  # the least recently used
                self._footers.popitem(last=False)
            rows = reader.read(group.index, self.columns, shard.games, planes_RP, packed=packed)
        if self.people_only and shard.by_engine and "label" in rows:
            rows["label"] = np.full_like(rows["label"], NO_LABEL)
        if len(rows[self.columns[0]]) != group.rows:
            raise DatasetError(
                f"{shard.path} has other games than its training set says: join the datasets again"
            )
        return rows

    def _epochs(self, epoch: int, skip: int) -> Iterator[tuple[_Block, int]]:
        """Yield shuffled blocks without end, from row `skip` of an epoch on, each with the first
        row to use.

        A block is valid until the next but one is requested: its memory is reused, since fresh
        pages cost more than the rows.
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

        largest = min(
            self.share[1] - self.share[0],
            self.block_rows + max(group.rows for group in self.groups),
        )
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
        """Yield batches without end from `step` on: this process's part of every batch."""
        size = self.batch_size // self.world
        epoch, skip = divmod(step * size, self.share[1] - self.share[0])
        parts: list[Batch] = []
        have = 0
        for block, first in self._epochs(epoch, skip):
            rows, at = len(block.order_R), first
            while rows - at >= (need := size - have):
                whole = block.take(at, at + need)
                yield _concatenate([*parts, whole])  # a batch may begin in the block before
                parts, have = [], 0
                at += need
            if at < rows:
                parts.append(block.take(at, rows))
                have += rows - at

    def __len__(self) -> int:
        """Return the number of batches in an epoch."""
        return -(-(self.share[1] - self.share[0]) // (self.batch_size // self.world))

    def __iter__(self) -> Iterator[Batch]:
        """Yield one shuffled epoch; its last batch may be smaller. The order is the same each
        time.
        """
        size, left = self.batch_size // self.world, self.share[1] - self.share[0]
        for batch in islice(self.from_step(0), len(self)):
            yield batch if left >= size else {name: values[:left] for name, values in batch.items()}
            left -= size

    def read_rows(self) -> Iterator[Batch]:
        """Yield every row once in the order of the files; the last batch of a row group may be
        smaller.
        """
        for group in self.groups:
            rows = self._rows(group)
            for at in range(0, group.rows, self.batch_size):
                yield {name: values[at : at + self.batch_size] for name, values in rows.items()}

    def sample(self, count: int) -> Iterator[Batch]:
        """Yield `count` random rows, or all if there are fewer, none twice, in the order of the
        files.
        """
        rng = np.random.Generator(np.random.PCG64((self.seed, SAMPLE_STREAM)))
        chosen = np.sort(rng.choice(self.rows, min(count, self.rows), replace=False, shuffle=False))
        parts: list[Batch] = []
        have = first = 0
        for group in self.groups:
            low, high = np.searchsorted(chosen, (first, first + group.rows))
            if low < high:
                rows = self._rows(group)
                parts.append(
                    {name: values[chosen[low:high] - first] for name, values in rows.items()}
                )
                have += high - low
            first += group.rows
            if parts and (have >= self.batch_size or first == self.rows):
                whole = _concatenate(parts)
                for at in range(0, have, self.batch_size):
                    yield {
                        name: values[at : at + self.batch_size] for name, values in whole.items()
                    }
                parts, have = [], 0
