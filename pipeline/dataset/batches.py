"""Shards into batches: shuffled, packed, resumable at any step; the bits are unpacked on the training device.

    row groups in a random order -> blocks of many groups -> batches of rows picked at random in a block

The stream is one endless sequence of rows, fixed by (seed, files): epoch after epoch, each row once an epoch. Step k is its
rows k * batch_size and on, so a run that is killed and resumed sees exactly the batches that it would have seen. Of several
processes each has such a stream of its own, of its share of the row groups of each epoch; a batch is one part from each.

A batch is a dict of the columns asked for as numpy arrays, as `pipeline.dataset.files.shards.batch_columns` gives them.
"""

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Event

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

from engine.encoding.planes import PLANES
from pipeline.dataset.files.columns import COLUMNS
from pipeline.dataset.files.permute import Records, gather_rows, record_type
from pipeline.dataset.files.plane_kernels import PACKED
from pipeline.dataset.files.shard_files import open_shard
from pipeline.dataset.files.shards import Batch
from pipeline.dataset.files.stored_planes import InvalidRowError, unpack
from pipeline.dataset.training_set import Shard, read_group, split_shards
from pipeline.errors import ConfigError, DatasetError

BLOCK_ROWS = 1 << 18
"""Rows that are shuffled together: 161 MB of planes, 10 MB of packed positions; two blocks are in memory, one read ahead."""

FOOTERS = 256
"""Footers of files that are kept: some 200 kB each."""

SHUFFLED, DRAWN = 0x6B6C62, 0x64726E
"""What our random streams are told apart by. A stream without a number of its own is another's: numpy takes the seeds
(0, 0, 0) and (0, 0, 0, 0) for the same, and the permutation that ingest shuffles a chunk by was undone here."""

HUMAN_COLUMNS = tuple(name for name in COLUMNS if name not in ("visits", "root_value"))
"""The columns that batches hold unless others are asked for: all that every human game fills."""


@dataclass(frozen=True, slots=True)
class _Group:
    """A row group of a shard."""

    shard: Shard
    index: int
    rows: int
    """Rows that count."""


@dataclass(frozen=True, slots=True)
class _Part:
    """Rows of a row group: all of them, but for the groups in which a process's share of an epoch begins and ends."""

    group: _Group
    first: int
    last: int

    @property
    def rows(self) -> int:
        return self.last - self.first

    @property
    def whole(self) -> bool:
        return self.rows == self.group.rows


def _groups(directories: Sequence[Path], split: str) -> list[_Group]:
    """List the row groups of a split by the manifests, by the footers of files where those do not tell."""
    groups: list[_Group] = []
    for directory in directories:
        for shard in split_shards(directory, split):
            whole = shard.groups()
            rows = shard.kept if shard.thinning is not None else whole
            if len(rows) != len(whole) or any(kept > count for kept, count in zip(rows, whole, strict=True)):
                raise DatasetError(
                    f"{shard.path} has other row groups than its training set says: join the datasets again"
                )
            groups += [_Group(shard, index, count) for index, count in enumerate(rows)]
    return groups


class _Block:
    """Rows that are shuffled together, as they were read; its memory is used for one block after another.

    All columns of numbers but the planes lie in records: a row picked at random is two waits for memory and not eighteen.
    """

    def __init__(self, columns: Sequence[str], largest: int, *, packed: bool) -> None:
        """Make room for `largest` rows, their planes as packed positions or as they are."""
        self.columns, self.largest, self.packed = columns, largest, packed
        self.planes_RP = np.empty(
            (largest if "planes" in columns else 0, PACKED if packed else PLANES), dtype=np.uint64
        )
        self.records: Records | None = None
        self.objects: dict[str, NDArray[np.object_]] = {}
        self.order_R = np.empty(0, dtype=np.int64)
        """Which of the rows is first, second, ..."""
        self.sources: list[tuple[int, Path]] = []
        """The row behind the last one of each file's group, and the file."""

    def put(self, rows: slice, columns: Batch) -> None:
        """Keep columns of some rows."""
        kinds = {name: kept.dtype for name, kept in columns.items() if name != "planes" and kept.dtype != object}
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
        """Copy the rows from `first` to `last` of the block's order."""
        picked = self.order_R[first:last]
        taken = {} if self.records is None else self.records.take(picked)
        batch: Batch = {}
        for name in self.columns:
            if name == "planes":
                words = np.empty((len(picked), self.planes_RP.shape[1]), dtype=np.uint64)
                gather_rows(self.planes_RP, picked, words)
                batch[name] = self._unpacked(words, picked, taken.get("label")) if self.packed else words
            elif name in self.objects:
                batch[name] = self.objects[name][picked]
            else:
                batch[name] = taken[name]
        return batch

    def _unpacked(
        self, words_RW: NDArray[np.uint64], picked: NDArray[np.int64], labels: NDArray[np.uint16] | None
    ) -> NDArray[np.uint64]:
        """Make the planes of packed rows; raises DatasetError, with the file's name, for one that is no position."""
        try:
            return unpack(words_RW, np.empty(0, dtype=np.uint16) if labels is None else labels)
        except InvalidRowError as error:
            path = next(path for end, path in self.sources if picked[error.row] < end)
            raise DatasetError(f"{path} cannot be read as a shard ({error.why}): ingest the dump again") from error


@contextmanager
def _set_at_end(closing: Event) -> Iterator[None]:
    """Set an event in the end."""
    try:
        yield
    finally:
        closing.set()


def _joined(parts: Sequence[Batch]) -> Batch:
    """Put rows behind each other."""
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


class Batches:
    """The batches of one split of some datasets or training sets."""

    def __init__(
        self,
        directories: Sequence[Path],
        split: str = "train",
        *,
        batch_size: int = 512,
        seed: int = 0,
        rank: int = 0,
        world: int = 1,
        columns: Sequence[str] = HUMAN_COLUMNS,
        block_rows: int | None = None,
    ) -> None:
        """Find the shards; `rank` of `world` processes gets its equal part of every batch, from row groups of its own.

        Raises DatasetError where there is no dataset, no such split, or nothing in it; ConfigError for a batch that cannot be
        shared, and for fewer rows than processes.
        """
        if batch_size < 1 or not 0 <= rank < world or batch_size % world:
            raise ConfigError(
                f"a batch of {batch_size} cannot be divided among {world} processes (this is number {rank})"
            )
        self.groups = _groups(directories, split)
        self.rows = sum(group.rows for group in self.groups)
        """Rows of one epoch."""
        if self.rows < world:
            raise ConfigError(f"{self.rows} rows cannot be shared by {world} processes")
        self.share = (self.rows * rank // world, self.rows * (rank + 1) // world)
        """The rows of an epoch that are this process's, by their place in the epoch's order of row groups."""
        self.batch_size, self.seed, self.rank, self.world = batch_size, seed, rank, world
        self.block_rows = block_rows or BLOCK_ROWS
        self.columns = list(columns)
        self.packed = "planes" in columns and all(group.shard.form == "compact" for group in self.groups)
        """Rows are shuffled as packed positions, and their planes made batch by batch."""
        self._footers: OrderedDict[Path, pq.FileMetaData] = OrderedDict()

    def _parts(self, epoch: int) -> Iterator[_Part]:
        """Give the row groups of an epoch that are this process's, in a random order.

        The processes cut one order of all groups at the rows of their `share`, so that each row is one's, and a process reads
        the groups of its share and no more: no group but those that a cut goes through is read twice.
        """
        first, last = self.share
        begin = 0
        for index in np.random.Generator(np.random.PCG64((self.seed, epoch))).permutation(len(self.groups)):
            group = self.groups[index]
            low, high = max(first - begin, 0), min(last - begin, group.rows)
            if low < high:
                yield _Part(group, low, high)
            begin += group.rows

    def _blocks(self, epoch: int) -> list[list[_Part]]:
        """Give the blocks of an epoch: this process's row groups in their order, `block_rows` together."""
        blocks: list[list[_Part]] = [[]]
        rows = 0
        for part in self._parts(epoch):
            if rows >= self.block_rows:
                blocks.append([])
                rows = 0
            blocks[-1].append(part)
            rows += part.rows
        return blocks

    def _read(self, closing: Event, block: _Block, parts: Sequence[_Part], epoch: int, number: int) -> _Block:
        """Read a block's rows and draw their order."""
        at, block.sources = 0, []
        for part in parts:
            if closing.is_set():  # nobody waits for the block any more
                return block
            rows = slice(at, at + part.rows)
            columns = self._rows(part.group, block.planes_RP[rows] if part.whole else None, packed=self.packed)
            if not part.whole:
                columns = {name: values[part.first : part.last] for name, values in columns.items()}
            block.put(rows, columns)
            at += part.rows
            block.sources.append((at, part.group.shard.path))
        seed = (self.seed, epoch, number, SHUFFLED, *([self.rank] if self.rank else []))
        places = np.random.Generator(np.random.PCG64(seed)).permutation(at)
        block.order_R = np.empty(at, dtype=np.int64)
        block.order_R[places] = np.arange(at)
        return block

    def _rows(self, group: _Group, planes_RP: NDArray[np.uint64] | None = None, *, packed: bool = False) -> Batch:
        """Read the rows of one group in their order, planes to `planes_RP` where none is dropped; DatasetError if damaged.

        With `packed`, `planes` are packed positions.
        """
        shard = group.shard
        with open_shard(shard.path, shard.rows, self._footers.get(shard.path)) as reader:
            if shard.path not in self._footers:
                if reader.groups != shard.groups():
                    raise DatasetError(
                        f"{shard.path} has other row groups than its manifest says: ingest the dump again"
                    )
                self._footers[shard.path] = reader.file.metadata
                if len(self._footers) > FOOTERS:
                    self._footers.popitem(last=False)
            rows = read_group(reader, group.index, self.columns, shard, planes_RP, packed=packed)
            count = len(next(iter(rows.values())))
            if count != group.rows:
                raise ValueError(
                    f"{count} rows of a row group remain after thinning, and the training set says {group.rows}"
                )
            return rows

    def _epochs(self, epoch: int, skip: int) -> Iterator[tuple[_Block, int]]:
        """Give shuffled blocks for ever and the first row of each that counts, from row `skip` of an epoch on.

        A block is valid until the next but one is asked for: its memory is used again, for fresh pages cost more than rows.
        """

        def plan() -> Iterator[tuple[list[_Part], int, int, int]]:
            number_of_epoch, left = epoch, skip
            while True:
                for number, parts in enumerate(self._blocks(number_of_epoch)):
                    rows = sum(part.rows for part in parts)
                    if left >= rows:
                        left -= rows
                        continue
                    yield parts, number_of_epoch, number, left
                    left = 0
                number_of_epoch += 1

        largest = min(self.share[1] - self.share[0], self.block_rows + max(group.rows for group in self.groups))
        now, later = (_Block(self.columns, largest, packed=self.packed) for _ in range(2))
        closing = Event()
        with ThreadPoolExecutor(1, "read-ahead") as reader, _set_at_end(closing):
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
        """Give batches for ever, beginning with that of `step`: of every batch this process's part."""
        size = self.batch_size // self.world
        epoch, skip = divmod(step * size, self.share[1] - self.share[0])
        parts: list[Batch] = []
        have = 0
        for block, first in self._epochs(epoch, skip):
            rows, at = len(block.order_R), first
            while rows - at >= (need := size - have):
                whole = block.take(at, at + need)
                yield _joined([*parts, whole]) if parts else whole  # some batches lie across blocks
                parts, have = [], 0
                at += need
            if at < rows:
                parts.append(block.take(at, rows))
                have += rows - at

    def once(self) -> Iterator[Batch]:
        """Give every row once in the order of the files; the last batch of a row group may be smaller."""
        for group in self.groups:
            rows = self._rows(group)
            for at in range(0, group.rows, self.batch_size):
                yield {name: values[at : at + self.batch_size] for name, values in rows.items()}

    def drawn(self, count: int) -> Iterator[Batch]:
        """Give `count` rows drawn at random from all there are, or all of them, none twice, in the order of the files."""
        chance = np.random.Generator(np.random.PCG64((self.seed, DRAWN)))
        chosen = np.sort(chance.choice(self.rows, min(count, self.rows), replace=False, shuffle=False))
        parts: list[Batch] = []
        have = first = 0
        for group in self.groups:
            low, high = np.searchsorted(chosen, (first, first + group.rows))
            if low < high:
                rows = self._rows(group)
                parts.append({name: values[chosen[low:high] - first] for name, values in rows.items()})
                have += high - low
            first += group.rows
            if parts and (have >= self.batch_size or first == self.rows):
                whole = _joined(parts)
                for at in range(0, have, self.batch_size):
                    yield {name: values[at : at + self.batch_size] for name, values in whole.items()}
                parts, have = [], 0
