"""Pieces of a dump from many places, for judging the whole by them: a few megabytes, however large it is.

Plain PGN is read at places spread over the file. An archive of many zstd frames (as pzstd writes) is read at frames spread
over it. Any other archive can only be read from its beginning: up to REACH of its text is decompressed, and the pieces are
spread over that; what lies behind it is guessed from it, and `Pieces.whole` is False. Of an address only those parts are asked
for, fewer and less of them than of a file of this machine.
"""

import io
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain, pairwise
from pathlib import Path
from typing import IO

import zstandard

from pipeline.dumps.formats.text import Readable
from pipeline.dumps.reader import STDIN, Source
from pipeline.errors import DumpError
from pipeline.storage.objects import read_part
from pipeline.storage.stores import is_url, read_span

REACH = 1 << 29
"""Bytes of text that are decompressed at most to spread the pieces over."""
FAR_REACH = 1 << 27
"""The same of an archive at an address: some 20 MB of it."""
PLACES = 32
FAR_PLACES = 8
"""Places at which frames are looked for in an archive at an address."""
SEARCH = 1 << 22
"""Raw bytes in which a frame is looked for from each place on."""
BLOCK = 1 << 20
ENOUGH = 1 << 16
"""Bytes of text that a frame must give to be one."""
_FRAME = b"\x28\xb5\x2f\xfd"
_GAME = re.compile(rb"\n\r?\n(?=\[Event )")


@dataclass(slots=True)
class Pieces:
    """Texts of whole games, and what they say of the length of the whole."""

    name: str
    size: int | None
    """Bytes on disk, None for standard input."""
    texts: list[bytes] = field(default_factory=list)
    text_bytes: float = 0.0
    """Bytes of text in all, as far as can be told."""
    error: float = 0.0
    """Standard error of `text_bytes`, as a share of it; 0 where it is known."""
    whole: bool = True
    """Whether the pieces are spread over all of it."""
    basis: str = ""
    """In words: what was read."""


def read_pieces(name: str, want: int) -> Pieces:
    """Read about `want` bytes of text from a dump; raises DumpError as reading it would.

    A dump of no more than that is read as one piece, and everything of it is then known.
    """
    source = Source(name)
    stream = source.open()
    found = Pieces(name, source.size)
    try:
        tried = False
        if source.size is not None and not source.input:
            if source.compression is None and source.size > want:
                tried = _from_places(name, source.size, want, found)
            elif source.compression == "zstd":
                tried = _from_frames(name, want, found)
        if not tried:
            _from_stream(source, stream, want, found)
    finally:
        source.close()
    if not any(found.texts):
        raise DumpError(f"{name} holds no whole game in what was read of it")
    return found


def _games(text: bytes, first: bool, last: bool) -> bytes:
    """Cut a text to whole games: the first and the last of it may be parts, but at the ends of the dump."""
    begins = [0] * first + [found.end() for found in _GAME.finditer(text)] + [len(text)] * last
    return text[begins[0] : begins[-1]] if begins else b""


def _strata(total: int, length: int, places: int) -> list[int]:
    """Return offsets, one drawn from each equal part of what lies before `total`; the same ones each time."""
    rng = random.Random(0)  # noqa: S311
    part = total / places
    return [int(part * (place + rng.random() * max(0.0, 1 - length / part))) for place in range(places)]


def _part(name: str, begin: int, count: int) -> bytes | None:
    """Read a part of a dump, wherever it lies; None from a server that gives no parts."""
    return read_part(name, begin, count) if is_url(name) else read_span(Path(name), begin, begin + count)


def _from_places(name: str, size: int, want: int, found: Pieces) -> bool:
    """Read pieces of a plain file; give False where no parts of it can be had."""
    length, texts = want // PLACES, []
    for offset in _strata(size, length, PLACES):
        text = _part(name, offset, length)
        if text is None:
            return False
        texts.append(_games(text, offset == 0, offset + length >= size))
    found.texts, found.text_bytes = texts, float(size)
    found.basis = f"{PLACES} places over the file"
    return True


def _from_frames(name: str, want: int, found: Pieces) -> bool:
    """Read pieces of an archive of many frames; give False where it is none, or no parts of it can be had."""
    places = FAR_PLACES if is_url(name) else PLACES
    length, ratios, begun = want // places, [], set()
    texts: list[bytes] = []
    size = found.size or 0
    for place, offset in enumerate(_strata(size, SEARCH, places)):
        raw = _part(name, offset, SEARCH)
        if raw is None:
            return False
        at, text, ratio = raw.find(_FRAME), b"", 0.0
        while at >= 0 and len(text) < ENOUGH:
            text, ratio = _decompressed(io.BytesIO(raw[at:]), length)
            at = raw.find(_FRAME, at + 1) if len(text) < ENOUGH else at
        if at >= 0 and offset + at > 0 and offset + at not in begun:
            begun.add(offset + at)
            texts.append(_games(text, first=False, last=False))
            ratios.append(ratio)
        if place >= 3 and len(begun) <= place // 2:
            return False
    mean = sum(ratios) / len(ratios)
    spread = sum((ratio - mean) ** 2 for ratio in ratios) / max(len(ratios) - 1, 1)
    found.texts, found.text_bytes = texts, size * mean
    found.error = (spread / len(ratios)) ** 0.5 / mean
    found.basis = f"{len(texts)} frames over the archive"
    return True


def _decompressed(raw: IO[bytes], length: int) -> tuple[bytes, float]:
    """Decompress a frame, or the raw bytes there are of it: its first `length` bytes, and bytes of text a raw byte."""
    decoder = zstandard.ZstdDecompressor().decompressobj()
    text, size, taken = bytearray(), 0, 0
    try:
        while not decoder.eof and (block := raw.read(1 << 14)):
            part = decoder.decompress(block)
            taken += len(block) - len(decoder.unused_data)
            size += len(part)
            text += part[: max(length - len(text), 0)]
    except zstandard.ZstdError:
        return b"", 0.0
    return bytes(text), size / max(taken, 1)


def _blocks(source: Source, stream: Readable, found: Pieces) -> Iterator[bytes]:
    """Yield the text of a stream by blocks; damage is an end."""
    while True:
        try:
            block = stream.read(BLOCK)
        except OSError:
            found.basis = "; the archive is damaged"
            return
        if not block:
            return
        yield block


def _from_stream(source: Source, stream: Readable, want: int, found: Pieces) -> None:
    """Read pieces of what can only be read from its beginning."""
    blocks = _blocks(source, stream, found)
    head, text = [], 0
    for block in blocks:
        head.append(block)
        text += len(block)
        if text > want:
            break
    begin = b"".join(head)
    if text <= want:
        found.texts, found.text_bytes = [begin], float(text)
        found.basis = f"all of it{found.basis}"
        return
    ratio = text / max(source.bytes_read, 1)
    reach = FAR_REACH if is_url(source.name) else REACH
    far = int(min(reach, (source.size or 0) * ratio)) if source.name != STDIN and not source.input else 0
    offsets, length = _strata(max(far, text), want // PLACES, PLACES), want // PLACES
    wanted = {place: bytearray() for place in range(PLACES)}
    at, marks = 0, [(source.bytes_read, text)]
    for block in chain([begin], blocks if far > text else []):
        for place, offset in enumerate(offsets):
            low, high = max(offset, at), min(offset + length, at + len(block))
            if low < high:
                wanted[place] += block[low - at : high - at]
        at += len(block)
        marks.append((source.bytes_read, at))
        if at >= max(reach if far else 0, text):
            break
    _judge(source, found, marks, ended=not next(blocks, b""))
    pieces = [bytes(wanted[place]) for place in range(PLACES) if wanted[place]]
    found.texts = [
        _games(piece, first=place == 0 and offsets[0] == 0, last=False) for place, piece in enumerate(pieces)
    ]


def _judge(source: Source, found: Pieces, marks: list[tuple[int, int]], *, ended: bool) -> None:
    """Say how long the whole text is by how far the raw bytes went, from (raw, text) bytes at some moments."""
    raw, text = marks[-1]
    if ended:
        found.text_bytes = float(text)
        found.basis = f"{PLACES} places over all of it{found.basis}"
        return
    found.whole = False
    found.basis = f"the first {text >> 20} MiB of its text only: what lies behind may differ"
    ratios = [
        (later[1] - before[1]) / (later[0] - before[0]) for before, later in pairwise(marks[1:]) if later[0] > before[0]
    ]
    ratio = text / max(raw, 1)
    if source.size is None:
        found.text_bytes, found.error = float(text), 0.0
        found.basis = f"the first {text >> 20} MiB of standard input, whose length is not known: figures are of these"
        return
    found.text_bytes = source.size * ratio
    if len(ratios) > 1:
        mean = sum(ratios) / len(ratios)
        spread = sum((value - mean) ** 2 for value in ratios) / (len(ratios) - 1)
        found.error = (spread / len(ratios)) ** 0.5 / mean
