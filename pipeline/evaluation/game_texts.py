"""The PGN text of single games, read from the dumps that a dataset was made of."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress

import numpy as np

from pipeline.dataset.dataset import Dataset
from pipeline.dumps.formats.evaluations import ALL, Sample
from pipeline.dumps.source import BLOCK, Source


def read_texts(
    dataset: Dataset,
    sources: Sequence[str | Iterable[bytes]],
    games: Collection[int],
    limit: int | None,
) -> tuple[dict[int, int], dict[int, bytes]]:
    """Return the byte at which each of the games begins in its dump, and its text where the dump
    has it.

    A source is a path, or the decompressed bytes. With a `limit`, only games that begin in the
    first dump's first bytes.
    """
    spans: dict[int, dict[int, tuple[int, int]]] = {}
    wanted = np.array(sorted(games), dtype=np.int64)
    for first, table in dataset.games(("source", "offset", "length")):
        here = wanted[(wanted >= first) & (wanted < first + len(table))]
        for game, row in zip(here.tolist(), table.take(here - first).to_pylist(), strict=True):
            if limit is None or (row["source"] == 0 and row["offset"] < limit):
                spans.setdefault(row["source"], {})[game] = (row["offset"], row["length"])
    texts: dict[int, bytes] = {}
    for source, spans_of in zip(
        sources, (spans.get(number, {}) for number in range(len(sources))), strict=True
    ):
        if spans_of:
            texts |= dict(_cut(text_of(source) if isinstance(source, str) else source, spans_of))
    return {
        game: offset for spans_of in spans.values() for game, (offset, _) in spans_of.items()
    }, texts


def text_of(source: str, sample: Sample = ALL) -> Iterator[bytes]:
    """Yield the decompressed bytes of a dump, up to where it is damaged; of evaluated positions,
    the lines of a sample.
    """
    stream = Source(source, sample=sample).open()
    with suppress(OSError):
        while block := stream.read(BLOCK):
            yield block


def _cut(
    chunks: Iterable[bytes], spans: Mapping[int, tuple[int, int]]
) -> Iterator[tuple[int, bytes]]:
    """Yield the named (offset, length) spans of a stream of bytes, reading no further than the last
    one.
    """
    window, start = bytearray(), 0
    stream = iter(chunks)
    for key, (offset, length) in sorted(spans.items(), key=lambda item: item[1]):
        while start + len(window) < offset + length:
            if (chunk := next(stream, None)) is None:
                return
            passed = min(len(window), max(0, offset - start))
            del window[:passed]
            start += passed
            window += chunk
        yield key, bytes(window[offset - start : offset - start + length])
