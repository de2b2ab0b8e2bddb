"""Sample a few megabytes of a dump at many places, to estimate the whole.

A plain file is read at places spread over it, an archive of many zstd frames (as pzstd writes) at frames spread over it.
Anything else is read from its beginning, up to REACH of its text: the rest is assumed to be like the pieces of that.
"""

import random
import re
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import numpy as np
import zstandard

from pipeline.dumps.archives import ZSTD
from pipeline.dumps.formats.text import Readable
from pipeline.dumps.reader import STDIN, Source
from pipeline.errors import DumpError
from pipeline.storage.stores import is_url

REACH = 1 << 29
"""Most bytes of text to read of a dump that can only be read from its beginning."""
FAR_REACH = 1 << 27
"""The same for a remote dump: some 20 MB of an archive."""
PLACES = 32
SEARCH = 1 << 22
"""Raw bytes that are searched for a frame at each place."""
ENOUGH = 1 << 16
"""Bytes of text that a frame must have: its magic number may also occur within compressed data."""
_GAME = re.compile(rb"\n\r?\n(?=\[Event )")


@dataclass(slots=True)
class Pieces:
    """Texts of whole games, and the length of the text that they are taken from."""

    name: str
    size: int | None
    """Bytes of the file, None for standard input."""
    texts: list[bytes] = field(default_factory=list)
    text_bytes: float = 0.0
    """Bytes of the whole text, estimated if the dump was not read to its end."""
    error: float = 0.0
    """Standard error of `text_bytes` as a share of it; 0 if it is exact."""
    whole: bool = True
    """Whether the pieces are spread over the whole dump."""
    basis: str = ""
    """Description of what was read."""


def read_pieces(name: str, want: int) -> Pieces:
    """Read about `want` bytes of text from a dump, or all of a smaller one; raises DumpError."""
    source = Source(name)
    stream = source.open()
    found = Pieces(name, source.size)
    try:
        is_file = name != STDIN and not is_url(name) and not source.input
        if is_file and source.compression is None and (found.size or 0) > want:
            _read_places(found, want)
        elif not is_file or source.compression != "zstd" or not _read_frames(found, want):
            _read_beginning(source, stream, found, want)
    finally:
        source.close()
    if not any(found.texts):
        raise DumpError(f"{name} holds no whole game in what was read of it")
    return found


def _cut_to_games(text: bytes, first: bool, last: bool) -> bytes:
    """Return the whole games of a part of a dump, which may be its first or its last."""
    begins = [0] * first + [found.end() for found in _GAME.finditer(text)] + [len(text)] * last
    return text[begins[0] : begins[-1]] if begins else b""


def _draw_offsets(total: int, length: int) -> list[int]:
    """Return PLACES offsets, one from each equal part of the bytes before `total`; the same ones each time."""
    rng = random.Random(0)  # noqa: S311
    part = total / PLACES
    return [int(part * (place + rng.random() * max(0.0, 1 - length / part))) for place in range(PLACES)]


def _read_part(name: str, begin: int, count: int) -> bytes:
    """Return up to `count` bytes of a file from `begin` on."""
    with Path(name).open("rb") as file:
        file.seek(begin)
        return file.read(count)


def _read_places(found: Pieces, want: int) -> None:
    """Read pieces of a plain file."""
    size, length = found.size or 0, want // PLACES
    for offset in _draw_offsets(size, length):
        text = _read_part(found.name, offset, length)
        found.texts.append(_cut_to_games(text, offset == 0, offset + length >= size))
    found.text_bytes = float(size)
    found.basis = f"{PLACES} places over the file"


def _read_frames(found: Pieces, want: int) -> bool:
    """Read pieces of an archive of many frames; return False if it has few."""
    size, ratios, begins = found.size or 0, list[float](), set[int]()
    texts: list[bytes] = []
    for place, offset in enumerate(_draw_offsets(size, SEARCH)):
        raw = _read_part(found.name, offset, SEARCH)
        at, text, ratio = raw.find(ZSTD), b"", 0.0
        while at >= 0 and len(text) < ENOUGH:
            text, ratio = _decompress_frame(raw[at:], want // PLACES)
            at = raw.find(ZSTD, at + 1) if len(text) < ENOUGH else at
        if at >= 0 and offset + at > 0 and offset + at not in begins:
            begins.add(offset + at)
            texts.append(_cut_to_games(text, first=False, last=False))
            ratios.append(ratio)
        if place >= 3 and len(begins) <= place // 2:
            return False
    found.texts, found.basis = texts, f"{len(texts)} frames over the archive"
    _estimate_length(found, ratios, float(np.mean(ratios)))
    return True


def _decompress_frame(raw: bytes, length: int) -> tuple[bytes, float]:
    """Return the first `length` bytes of a frame's text, as far as it goes, and bytes of text per raw byte."""
    decoder = zstandard.ZstdDecompressor().decompressobj()
    text, at = bytearray(), 0
    try:
        while at < len(raw) and len(text) < length and not decoder.eof:
            text += decoder.decompress(raw[at : at + (1 << 14)])
            at += 1 << 14
    except zstandard.ZstdError:
        return b"", 0.0
    return bytes(text[:length]), len(text) / max(min(at, len(raw)) - len(decoder.unused_data), 1)


def _estimate_length(found: Pieces, ratios: list[float], ratio: float) -> None:
    """Set the length of the text by its bytes per raw byte, and its error by how these vary."""
    found.text_bytes = (found.size or 0) * ratio
    if len(ratios) > 1:
        found.error = float(np.std(ratios, ddof=1) / len(ratios) ** 0.5 / np.mean(ratios))


def _read_beginning(source: Source, stream: Readable, found: Pieces, want: int) -> None:
    """Read a dump from its beginning, and keep 32 to 63 pieces spread over what was read."""
    reach = want if source.name == STDIN or source.input else FAR_REACH if is_url(source.name) else REACH
    length, step, count, text = want // PLACES, 1, 0, 0
    kept: list[bytes] = []
    marks: list[tuple[int, int]] = []
    block, damage = b"-", ""
    while block and text <= reach:
        try:
            block = stream.read(length)
        except OSError:
            block, damage = b"", "; the archive is damaged"
        if count % step == 0:
            kept.append(block)
        if len(kept) == 2 * PLACES:
            del kept[1::2]
            step *= 2
        count, text = count + 1, text + len(block)
        if not marks or source.bytes_read > marks[-1][0]:  # what is read is decompressed before more is read
            marks.append((source.bytes_read, text))
    if not block and step == 1:
        found.texts, found.text_bytes, found.basis = [b"".join(kept)], float(text), f"all of it{damage}"
        return
    found.texts = [_cut_to_games(piece, first=place == 0, last=False) for place, piece in enumerate(kept)]
    found.text_bytes = float(text)
    if not block:
        found.basis = f"{len(kept)} places over all of it{damage}"
        return
    found.whole = False
    found.basis = f"the first {text >> 20} MiB of its text only: the rest may differ"
    if found.size is None:
        found.basis = f"the first {text >> 20} MiB of standard input, whose length is unknown: figures are of these"
        return
    (first_raw, first_text), (raw, decoded) = marks[0], marks[-1]
    ratio = (decoded - first_text) / (raw - first_raw) if len(marks) > 1 else text / max(raw, 1)
    _estimate_length(found, [(b[1] - a[1]) / (b[0] - a[0]) for a, b in pairwise(marks)], ratio)
