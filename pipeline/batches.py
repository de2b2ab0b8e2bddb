"""Shards into batches: shuffled, packed, resumable at any step; the bits are unpacked on the training device.

    row groups in a random order -> blocks of many groups -> rows permuted in a block -> batches

The stream is one endless sequence of rows, fixed by (seed, files): epoch after epoch, each row once an epoch. Step k is its
rows k * batch_size and on, so a run that is killed and resumed sees exactly the batches that it would have seen.

A batch is a dict of the columns asked for as numpy arrays, as `pipeline.shards.batch_columns` gives them.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from engine.encoding import moves_hash
from pipeline.errors import ConfigError, DatasetError
from pipeline.permute import place_rows
from pipeline.shards import batch_columns, schema
from pipeline.stores import opened
from pipeline.strata import Thinning
from pipeline.training_set import kept_rows, split_shards

Batch = dict[str, NDArray[Any]]

BLOCK_ROWS = 1 << 18
"""Rows that are shuffled together: 161 MB of planes; two blocks are in memory, one read ahead."""

HUMAN_COLUMNS = tuple(name for name in schema().names if name not in ("visits", "root_value"))
"""The columns that batches hold unless others are asked for: all that human games fill."""


@dataclass(frozen=True, slots=True)
class _Group:
    """A row group of a shard."""

    path: Path
    index: int
    rows: int
    thinning: Thinning | None = None
    """Which of its rows count; `rows` are those."""


def _groups(directories: Sequence[Path], split: str) -> tuple[list[_Group], dict[Path, pq.FileMetaData]]:
    """List the row groups of a split, and the footers of their files; raises DatasetError for a shard that is none."""
    groups: list[_Group] = []
    footers: dict[Path, pq.FileMetaData] = {}
    for directory in directories:
        for shard in split_shards(directory, split):
            path = shard.path
            try:
                footer = pq.read_metadata(opened(path))
            except (OSError, pa.ArrowInvalid) as error:
                raise DatasetError(f"{path} cannot be read as a shard ({error}): ingest the dump again") from error
            _check_schema(path, footer)
            footers[path] = footer
            whole = [footer.row_group(index).num_rows for index in range(footer.num_row_groups)]
            rows = shard.kept if shard.thinning is not None else whole
            if len(rows) != len(whole):
                raise DatasetError(f"{path} has other row groups than its training set says: join the datasets again")
            groups += [_Group(path, index, count, shard.thinning) for index, count in enumerate(rows)]
    return groups, footers


def _check_schema(path: Path, metadata: pq.FileMetaData) -> None:
    """Raise DatasetError for a file whose columns or encoding are not a shard's of this version."""
    found, ours = metadata.schema.to_arrow_schema(), schema()
    stamp = (metadata.metadata or {}).get(b"moves_hash", b"").decode("ascii", "replace")
    if not found.equals(ours, check_metadata=False) or stamp != moves_hash():
        raise DatasetError(f"{path} is no shard of this version (moves {stamp or 'unknown'}): ingest the dump again")


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
        """Find the shards; `rank` of `world` processes gets its equal part of every batch.

        Raises DatasetError where there is no dataset, no such split, or nothing in it.
        """
        if batch_size < 1 or not 0 <= rank < world or batch_size % world:
            raise ConfigError(f"a batch of {batch_size} cannot be shared by process {rank} of {world}")
        self.groups, self.metadata = _groups(directories, split)
        self.rows = sum(group.rows for group in self.groups)
        """Rows of one epoch."""
        self.batch_size, self.seed, self.rank, self.world = batch_size, seed, rank, world
        self.block_rows = block_rows or BLOCK_ROWS
        self.columns = list(columns)

    def _blocks(self, epoch: int) -> list[list[_Group]]:
        """Give the blocks of an epoch: row groups in a random order, `block_rows` together."""
        order = np.random.Generator(np.random.PCG64((self.seed, epoch))).permutation(len(self.groups))
        blocks: list[list[_Group]] = [[]]
        rows = 0
        for index in order:
            if rows >= self.block_rows:
                blocks.append([])
                rows = 0
            blocks[-1].append(self.groups[index])
            rows += self.groups[index].rows
        return blocks

    def _read(self, store: Batch, block: Sequence[_Group], epoch: int, number: int) -> Batch:
        """Read a block with its rows permuted, each group's rows straight to their places in the arrays of `store`."""
        rows = sum(group.rows for group in block)
        places = np.random.Generator(np.random.PCG64((self.seed, epoch, number))).permutation(rows)
        largest = min(self.rows, self.block_rows + max(group.rows for group in self.groups))
        at = 0
        for group in block:
            for name, values in self._rows(group).items():
                if name not in store:
                    store[name] = np.empty((largest, *values.shape[1:]), dtype=values.dtype)
                if values.dtype == object:  # references, which no kernel copies
                    store[name][places[at : at + group.rows]] = values
                else:
                    place_rows(store[name], places[at : at + group.rows], values)
            at += group.rows
        return {name: values[:rows] for name, values in store.items()}

    def _rows(self, group: _Group) -> Batch:
        """Read the rows of one group in their order."""
        with pq.ParquetFile(opened(group.path), metadata=self.metadata[group.path]) as file:
            rows = batch_columns(file.read_row_group(group.index, columns=self.columns, use_threads=False))
            if group.thinning is None:
                return rows
            kept = kept_rows(file, group.index, group.thinning)
            return {name: values[kept] for name, values in rows.items()}

    def _epochs(self, epoch: int, skip: int) -> Iterator[Batch]:
        """Give shuffled blocks for ever, from row `skip` of an epoch on; the next is read while one is in use.

        A block is valid until the next but one is asked for: its memory is used again, for fresh pages cost more than rows.
        """

        def plan() -> Iterator[tuple[list[_Group], int, int, int]]:
            number_of_epoch, left = epoch, skip
            while True:
                for number, block in enumerate(self._blocks(number_of_epoch)):
                    rows = sum(group.rows for group in block)
                    if left >= rows:
                        left -= rows
                        continue
                    yield block, number_of_epoch, number, left
                    left = 0
                number_of_epoch += 1

        with ThreadPoolExecutor(1, "read-ahead") as reader:
            steps = plan()
            block, *where, left = next(steps)
            now: Batch = {}
            later: Batch = {}
            ahead = reader.submit(self._read, now, block, *where)
            while True:
                current, drop = ahead.result(), left
                block, *where, left = next(steps)
                ahead = reader.submit(self._read, later, block, *where)
                now, later = later, now
                yield {name: values[drop:] for name, values in current.items()}

    def from_step(self, step: int) -> Iterator[Batch]:
        """Give batches for ever, beginning with that of `step`."""
        epoch, skip = divmod(step * self.batch_size, self.rows)
        rest: Batch = {}
        for block in self._epochs(epoch, skip):
            if rest and len(rest["planes"]):
                need = self.batch_size - len(rest["planes"])  # the batch that lies across two blocks
                first = {name: np.concatenate([rest[name], values[:need]]) for name, values in block.items()}
                if len(first["planes"]) < self.batch_size:
                    rest = first
                    continue
                yield {name: values[self.rank :: self.world] for name, values in first.items()}
                rows = {name: values[need:] for name, values in block.items()}
            else:
                rows = block
            whole = len(rows["planes"]) // self.batch_size * self.batch_size
            for at in range(0, whole, self.batch_size):
                part = slice(at + self.rank, at + self.batch_size, self.world)
                yield {name: values[part].copy() for name, values in rows.items()}
            rest = {name: values[whole:].copy() for name, values in rows.items()}

    def once(self) -> Iterator[Batch]:
        """Give every row once in the order of the files; the last batch of a row group may be smaller."""
        for group in self.groups:
            rows = self._rows(group)
            for at in range(0, group.rows, self.batch_size):
                yield {name: values[at : at + self.batch_size] for name, values in rows.items()}
