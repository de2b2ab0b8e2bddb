"""Mix rows of several sources, in fixed shares, into a stream of batches that resumes at any step.

`Shares` mixes endless streams, such as games and evaluated positions. `Mixture` mixes human and
self-play rows and uses each self-play row a fixed number of times:

    human datasets          -> Batches, from row 7,000 -+
    self-play, generation 4 -> Batches, from row 0     -+-> some rows of each -> permuted -> a batch
    self-play, generation 5 -> Batches, from row 0     -+

Each source is an endless stream of shuffled rows, and every batch takes the next ones. Batches 0 to
k contain floor((k + 1) * batch_size * human_share) human rows in total. The source of each
self-play row is drawn without replacement from tickets; a source has one ticket for each row that
the run takes from it.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate
from itertools import count as count_from

import numpy as np
from numpy.typing import NDArray

from pipeline.dataset.batches import Batches, concatenate, require_divisible, take_rows
from pipeline.dataset.files.shards import Batch
from pipeline.errors import ConfigError

SOURCE_STREAM, ORDER_STREAM = 1, 2
"""Tags in the seeds of the random streams, which draw a row's source and its place in the batch."""


@dataclass(frozen=True, slots=True)
class Source:
    """A stream of rows, and the range of rows that a run takes from it."""

    batches: Batches
    """The stream, with rank 0 and world 1, since every process reads all of it."""
    first: int = 0
    """First row of the stream that the run uses."""
    takes: int = 0
    """Total rows that the run takes from a self-play source; unused for human rows."""


def count_human_rows(batches: int, batch_size: int, share: Fraction) -> int:
    """Return the number of human rows in the first `batches` batches."""
    return batches * batch_size * share.numerator // share.denominator


class Mixture:
    """Batches of human and self-play rows, as many as the self-play rows suffice for."""

    def __init__(
        self,
        human: Source | None,
        selfplay: Sequence[Source],
        *,
        batch_size: int,
        human_share: Fraction,
        seed: int = 0,
        rank: int = 0,
        world: int = 1,
    ) -> None:
        """Draw the source of each row. Process `rank` of `world` gets an equal part of each batch.

        Raises ConfigError for a batch that cannot be divided, or unless the share is 0 without
        human datasets, and above 0 and below 1 with them.
        """
        require_divisible(batch_size, rank, world)
        if not 0 <= human_share < 1 or (human_share > 0) != (human is not None):
            raise ConfigError(
                "human_share must be 0 without human datasets, and with them above 0 and below 1"
            )
        self.sources: list[Source] = [*([human] if human is not None else []), *selfplay]
        self.human_sources = len(self.sources) - len(selfplay)
        self.batch_size, self.human_share, self.seed = batch_size, human_share, seed
        self.rank, self.world = rank, world
        takes = [source.takes for source in selfplay]
        tickets = np.repeat(
            np.arange(self.human_sources, len(self.sources), dtype=np.uint16), takes
        )
        self.tickets_S = np.random.Generator(np.random.PCG64((seed, SOURCE_STREAM))).permutation(
            tickets
        )
        self.steps = int(len(self.tickets_S) / (batch_size * (1 - human_share)))
        """Number of whole batches."""

    def count_rows(self, first: int, last: int) -> NDArray[np.int64]:
        """Count the rows of each source, human rows first, in the batches `first` to `last` - 1."""
        before = count_human_rows(first, self.batch_size, self.human_share)
        until = count_human_rows(last, self.batch_size, self.human_share)
        tickets = self.tickets_S[first * self.batch_size - before : last * self.batch_size - until]
        counts = np.bincount(tickets, minlength=len(self.sources)).astype(np.int64)
        if self.human_sources:
            counts[0] = until - before
        return counts

    def from_step(self, step: int) -> Iterator[Batch]:
        """Yield this process's part of the batches from `step` to the last."""
        taken = self.count_rows(0, step)
        readers: dict[int, _RowReader] = {}
        for number in range(step, self.steps):
            parts = []
            for index, count in enumerate(self.count_rows(number, number + 1).tolist()):
                if count and index not in readers:
                    source = self.sources[index]
                    readers[index] = _RowReader(source.batches, source.first + int(taken[index]))
                parts += readers[index].take(count) if count else []
            seed = (self.seed, ORDER_STREAM, number)
            yield _mix_rows(parts, self.batch_size, seed, self.rank, self.world)


class Shares:
    """Endless batches with a fixed share of rows from each stream."""

    def __init__(self, streams: Sequence[Batches], shares: Sequence[float]) -> None:
        """Mix streams of the same batch size, all with rank 0 and world 1.

        Raises ConfigError unless each stream has a positive share.
        """
        if len(shares) != len(streams) or not all(0 < share < math.inf for share in shares):
            raise ConfigError(
                f"shares must be positive numbers, one for each of {len(streams)} datasets, got "
                f"{list(shares)}"
            )
        self.streams = streams
        ends = accumulate(share / sum(shares) for share in shares)
        self.ends = [Fraction(end).limit_denominator(10**6) for end in ends]

    def count_rows(self, steps: int, size: int) -> NDArray[np.int64]:
        """Count the rows of each stream in the first `steps` batches of `size` rows."""
        ends = [count_human_rows(steps, size, end) for end in self.ends[:-1]]
        return np.diff([0, *ends, steps * size])

    def from_step(self, step: int, rank: int = 0, world: int = 1) -> Iterator[Batch]:
        """Yield, endlessly, the part of process `rank` of `world` of every batch from `step` on."""
        size, seed = self.streams[0].batch_size, self.streams[0].seed
        taken = self.count_rows(step, size)
        readers = [
            _RowReader(stream, int(first))
            for stream, first in zip(self.streams, taken, strict=True)
        ]
        for number in count_from(step):
            until = self.count_rows(number + 1, size)
            wanted, taken = (until - taken).tolist(), until
            parts: list[Batch] = []
            for reader, rows in zip(readers, wanted, strict=True):
                parts += reader.take(rows)
            yield _mix_rows(parts, size, (seed, ORDER_STREAM, number), rank, world)


def _mix_rows(
    parts: Sequence[Batch], size: int, seed: tuple[int, ...], rank: int, world: int
) -> Batch:
    """Shuffle a batch of `size` rows; return the rows of process `rank` of `world`."""
    places = np.random.Generator(np.random.PCG64(seed)).permutation(size)[rank::world]
    return take_rows(concatenate(parts), places)


class _RowReader:
    """Takes any number of rows at a time from a stream of batches."""

    def __init__(self, batches: Batches, first: int) -> None:
        step, drop = divmod(first, batches.batch_size)
        self.stream = batches.from_step(step)
        self.rest = take_rows(next(self.stream), slice(drop, None))

    def take(self, count: int) -> list[Batch]:
        """Return the next `count` rows, in parts."""
        parts = []
        while count > len(self.rest["planes"]):
            count -= len(self.rest["planes"])
            parts.append(self.rest)
            self.rest = next(self.stream)
        parts.append(take_rows(self.rest, slice(count)))
        self.rest = take_rows(self.rest, slice(count, None))
        return parts
