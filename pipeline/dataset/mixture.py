"""Human rows and self-play rows in one stream of batches: fixed shares, a fixed number of uses, resumable at any step.

    human datasets          -> Batches, row 7,000 and on -+
    self-play, generation 4 -> Batches, row 0 and on     -+-> so many rows of each -> permuted -> a batch
    self-play, generation 5 -> Batches, row 0 and on     -+

Each source is an endless stream of shuffled rows, of which a batch takes the next ones; how many is fixed before the run
begins. Batches 0 to k hold floor((k + 1) * batch_size * human_share) human rows, so each carries on the fraction of a row
that the last one owed. The others' datasets are drawn without replacement from as many tickets as the run takes rows of each.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from pipeline.dataset.batches import Batches
from pipeline.dataset.files.shards import Batch
from pipeline.errors import ConfigError

TICKETS, PLACES = 1, 2
"""What the seed is joined by, so that chances of different kinds differ: which dataset, and where in a batch."""


@dataclass(frozen=True, slots=True)
class Source:
    """Where rows come from."""

    batches: Batches
    """The stream, of one process: it is read whole by each."""
    first: int = 0
    """Row of the stream that the run begins with: those before it have been used."""
    takes: int = 0
    """Self-play rows that the run takes in all; of human ones their share of a batch says it."""


def human_rows(batches: int, batch_size: int, share: Fraction) -> int:
    """Count the human rows of the first so many batches."""
    return batches * batch_size * share.numerator // share.denominator


class Mixture:
    """The batches of one run; as many as the self-play sources' rows fill, together with their share of human ones."""

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
        """Draw which source each row is of; `rank` of `world` processes gets its equal part of every batch.

        Raises ConfigError for a batch that cannot be shared, a share that is none, or one of human rows without any.
        """
        if batch_size < 1 or not 0 <= rank < world or batch_size % world:
            raise ConfigError(
                f"a batch of {batch_size} cannot be divided among {world} processes (this is number {rank})"
            )
        if not 0 <= human_share < 1 or (human_share > 0) != (human is not None):
            raise ConfigError(
                "human_share is from 0 to below 1; it is above 0 where there are human datasets, and only there"
            )
        self.sources: list[Source] = [*([human] if human is not None else []), *selfplay]
        self.humans = len(self.sources) - len(selfplay)
        self.batch_size, self.human_share, self.seed = batch_size, human_share, seed
        self.rank, self.world = rank, world
        takes = [source.takes for source in selfplay]
        tickets = np.repeat(np.arange(self.humans, len(self.sources), dtype=np.uint16), takes)
        self.tickets_S = np.random.Generator(np.random.PCG64((seed, TICKETS))).permutation(tickets)
        self.steps = int(len(self.tickets_S) / (batch_size * (1 - human_share)))
        """Whole batches that there are."""

    def counts(self, first: int, last: int) -> NDArray[np.int64]:
        """Count the rows of each source, the human one first, in batches `first` to `last`, the last left out."""
        before, until = (human_rows(step, self.batch_size, self.human_share) for step in (first, last))
        mine = self.tickets_S[first * self.batch_size - before : last * self.batch_size - until]
        counts = np.bincount(mine, minlength=len(self.sources)).astype(np.int64)
        if self.humans:
            counts[0] = until - before
        return counts

    def from_step(self, step: int) -> Iterator[Batch]:
        """Give the batches from that of `step` to the last."""
        taken = self.counts(0, step)
        taps: dict[int, _Tap] = {}
        for number in range(step, self.steps):
            parts = []
            for index, count in enumerate(self.counts(number, number + 1).tolist()):
                if count and index not in taps:
                    source = self.sources[index]
                    taps[index] = _Tap(source.batches, source.first + int(taken[index]))
                parts += taps[index].take(count) if count else []
            chance = np.random.Generator(np.random.PCG64((self.seed, PLACES, number)))
            places = chance.permutation(self.batch_size)[self.rank :: self.world]
            yield {name: np.concatenate([part[name] for part in parts])[places] for name in parts[0]}


class _Tap:
    """The rows of a stream of batches, as many at a time as are asked for."""

    def __init__(self, batches: Batches, first: int) -> None:
        step, drop = divmod(first, batches.batch_size)
        self.stream = batches.from_step(step)
        self.rest = _cut(next(self.stream), drop, None)

    def take(self, count: int) -> list[Batch]:
        """Give the next rows, in parts."""
        parts = []
        while count > len(self.rest["planes"]):
            count -= len(self.rest["planes"])
            parts.append(self.rest)
            self.rest = next(self.stream)
        parts.append(_cut(self.rest, 0, count))
        self.rest = _cut(self.rest, count, None)
        return parts


def _cut(batch: Batch, first: int, last: int | None) -> Batch:
    return {name: column[first:last] for name, column in batch.items()}
