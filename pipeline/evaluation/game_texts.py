"""The PGN text and tags of single games, read from the dumps that a dataset was made of."""

import io
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import chess.pgn
import numpy as np

from pipeline.dataset.dataset import Dataset
from pipeline.dumps.formats.evaluations import ALL, Sample
from pipeline.dumps.source import BLOCK, Source
from pipeline.errors import DumpError

LIMIT = 1 << 28
"""Bytes of the decompressed dump that are searched for games, in a few seconds."""
LINK = re.compile(r"https?://[A-Za-z0-9.-]+(/[A-Za-z0-9._~/?#=&%+-]*)?")
TAGS = ("White", "Black", "Event", "Date")
LONGEST = 80

Boards = dict[str, list[dict[str, Any]]]


def read_texts(
    dataset: Dataset,
    sources: Sequence[str | Iterable[bytes]],
    games: Collection[int],
    limit: int | None,
) -> tuple[dict[int, int], dict[int, bytes]]:
    """Return the offset of each game in its dump, and the text of those that the dump has.

    A source is a path, or the decompressed bytes. With a `limit`, only games that begin in the
    first so many bytes of all games' texts.
    """
    spans: dict[int, dict[int, tuple[int, int]]] = {}
    wanted, before = np.array(sorted(games), dtype=np.int64), 0
    for first, table in dataset.games(("source", "offset", "length")):
        here = wanted[(wanted >= first) & (wanted < first + len(table))]
        ends = before + table["length"].to_numpy().cumsum(dtype=np.int64)
        before = int(ends[-1]) if len(ends) else before
        for game, row in zip(here.tolist(), table.take(here - first).to_pylist(), strict=True):
            begin = ends[game - first] - row["length"]
            if row["source"] < len(sources) and (limit is None or begin < limit):
                spans.setdefault(row["source"], {})[game] = (row["offset"], row["length"])
    texts: dict[int, bytes] = {}
    for source, spans_of in zip(
        sources, (spans.get(number, {}) for number in range(len(sources))), strict=True
    ):
        if spans_of:
            texts |= dict(_cut(read_dump(source) if isinstance(source, str) else source, spans_of))
    return {
        game: offset for spans_of in spans.values() for game, (offset, _) in spans_of.items()
    }, texts


def read_dump(source: str, sample: Sample = ALL) -> Iterator[bytes]:
    """Yield the decompressed bytes of a dump, up to any damage."""
    stream = Source(source, sample=sample).open()
    with suppress(OSError):
        while block := stream.read(BLOCK):
            yield block


def _cut(
    chunks: Iterable[bytes], spans: Mapping[int, tuple[int, int]]
) -> Iterator[tuple[int, bytes]]:
    """Yield (offset, length) spans of a byte stream, reading no further than the last one."""
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


def add_game_tags(boards: Boards, dataset: Dataset, dumps: Sequence[str]) -> Boards:
    """Add `link white black event date` to the boards whose games are in the dumps.

    The dumps were ingested into the dataset. Tags are untrusted text; only http links are kept.
    """
    if not dumps:
        return boards
    games = {row["game"] for rows in boards.values() for row in rows}
    try:
        _, texts = read_texts(dataset, dumps, games, LIMIT)
    except (OSError, DumpError):  # a report does not need its dump
        return boards
    tags = {game: _tags(text) for game, text in texts.items()}
    return {
        name: [row | tags.get(row["game"], {}) for row in rows] for name, rows in boards.items()
    }


def _tags(text: bytes) -> dict[str, str]:
    """Return players, event, date and link from a game's tags."""
    headers = chess.pgn.read_headers(io.StringIO(text.decode("utf-8", "replace")))
    if headers is None:
        return {}
    # python-chess keeps backslashes
    values = {name: re.sub(r"\\(.)", r"\1", headers.get(name, "")) for name in TAGS}
    found = {
        name.lower(): value[:LONGEST] for name, value in values.items() if value and value[0] != "?"
    }
    places = (headers.get(name, "") for name in ("Link", "Site"))
    link = next((place for place in places if len(place) <= 200 and LINK.fullmatch(place)), None)
    return found | ({"link": link} if link else {})
