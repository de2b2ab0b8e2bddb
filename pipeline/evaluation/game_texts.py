"""Read the PGN text and tags of single games from the dumps of a dataset."""

import io
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import chess.pgn
import numpy as np

from pipeline.dataset.dataset import Dataset
from pipeline.dumps.formats.evaluations import WHOLE_INPUT, Sample
from pipeline.dumps.source import BLOCK_BYTES, Source
from pipeline.errors import DumpError

MAX_SEARCHED_BYTES = 1 << 28
"""Maximum number of decompressed bytes to search for games, which takes a few seconds."""
LINK_PATTERN = re.compile(r"https?://[A-Za-z0-9.-]+(/[A-Za-z0-9._~/?#=&%+-]*)?")
"""Pattern of the links that a page may contain."""
SHOWN_TAGS = ("White", "Black", "Event", "Date")
MAX_TAG_CHARS, MAX_LINK_CHARS = 80, 200

Boards = dict[str, list[dict[str, Any]]]


def read_game_texts(
    dataset: Dataset,
    sources: Sequence[str | Iterable[bytes]],
    games: Collection[int],
    limit: int | None,
) -> tuple[dict[int, int], dict[int, bytes]]:
    """Return the offset of each game in its dump, and the text of each game that was found.

    `games` are row numbers of the dataset's games. `sources` are its dumps, in order: paths, or
    iterables of decompressed bytes. With a `limit`, only games that begin within the first `limit`
    bytes of all game texts are read.
    """
    spans: dict[int, dict[int, tuple[int, int]]] = {}
    wanted, before = np.array(sorted(games), dtype=np.int64), 0
    for first, table in dataset.read_games(("source", "offset", "length")):
        here = wanted[(wanted >= first) & (wanted < first + len(table))]
        ends = before + table["length"].to_numpy().cumsum(dtype=np.int64)
        before = int(ends[-1]) if len(ends) else before
        for game, row in zip(here.tolist(), table.take(here - first).to_pylist(), strict=True):
            begin = ends[game - first] - row["length"]
            if row["source"] < len(sources) and (limit is None or begin < limit):
                spans.setdefault(row["source"], {})[game] = (row["offset"], row["length"])
    offsets, texts = dict[int, int](), dict[int, bytes]()
    for number, found in spans.items():
        source = sources[number]
        chunks = read_dump(source) if isinstance(source, str) else source
        offsets |= {game: offset for game, (offset, _) in found.items()}
        texts |= dict(_cut_spans(chunks, found))
    return offsets, texts


def read_dump(source: str, sample: Sample = WHOLE_INPUT) -> Iterator[bytes]:
    """Yield the decompressed bytes of a dump; stop where it is damaged."""
    stream = Source(source, sample=sample).open()
    with suppress(OSError):
        while block := stream.read(BLOCK_BYTES):
            yield block


def _cut_spans(
    chunks: Iterable[bytes], spans: Mapping[int, tuple[int, int]]
) -> Iterator[tuple[int, bytes]]:
    """Yield the key and bytes of each (offset, length) span, until the stream ends."""
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
    """Add `link white black event date` to the boards whose games are found in the dumps.

    The tags are untrusted text, shortened but not escaped; only http and https links are kept.
    """
    if not dumps:
        return boards
    games = {row["game"] for rows in boards.values() for row in rows}
    try:
        _, texts = read_game_texts(dataset, dumps, games, MAX_SEARCHED_BYTES)
    except (OSError, DumpError):  # a report works without its dump
        return boards
    tags = {game: _parse_tags(text) for game, text in texts.items()}
    return {
        name: [row | tags.get(row["game"], {}) for row in rows] for name, rows in boards.items()
    }


def _parse_tags(text: bytes) -> dict[str, str]:
    """Return the players, event, date and link from a game's tags."""
    headers = chess.pgn.read_headers(io.StringIO(text.decode("utf-8", "replace")))
    if headers is None:
        return {}
    # unescape the values, since python-chess does not
    values = {name: re.sub(r"\\(.)", r"\1", headers.get(name, "")) for name in SHOWN_TAGS}
    # remove the tournament's link, which Lichess appends
    values["Event"] = re.sub(r" *https?://\S+", "", values["Event"])
    found = {
        name.lower(): value[:MAX_TAG_CHARS]
        for name, value in values.items()
        if value and value[0] != "?"
    }
    for link in (headers.get(name, "") for name in ("Link", "Site")):
        if len(link) <= MAX_LINK_CHARS and LINK_PATTERN.fullmatch(link):
            return found | {"link": link}
    return found
