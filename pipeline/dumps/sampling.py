"""Pieces of a dump, to estimate the whole from: a few megabytes, however large it is.

A dump is read from its beginning, up to REACH of its text, and pieces are kept that are spread over what was read. The rest is
assumed to be like them.
"""

import re
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from pipeline.dumps.reader import STDIN, Source
from pipeline.errors import DumpError
from pipeline.storage.stores import is_url

REACH = 1 << 29
"""Most bytes of text that are read."""
FAR_REACH = 1 << 27
"""The same for a remote dump: some 20 MB of an archive."""
PLACES = 32
"""Least number of pieces of a dump that is larger than the sample; there are fewer than twice as many."""
_GAME = re.compile(rb"\n\r?\n(?=\[Event )")


@dataclass(frozen=True, slots=True)
class Pieces:
    """Texts of whole games, and the length of the text that they are taken from."""

    name: str
    size: int | None
    """Bytes of the file, None for standard input."""
    texts: list[bytes]
    text_bytes: float
    """Bytes of the whole text, estimated if the dump was not read to its end."""
    basis: str
    """Description of what was read."""
    error: float = 0.0
    """Standard error of `text_bytes` as a share of it; 0 if it is exact."""
    whole: bool = True
    """Whether the dump was read to its end."""


def read_pieces(name: str, want: int) -> Pieces:
    """Read about `want` bytes of text from a dump, or all of a smaller one; raises DumpError."""
    source = Source(name)
    stream = source.open()
    reach = want if name == STDIN or source.input else FAR_REACH if is_url(name) else REACH
    step, count, text = 1, 0, 0
    kept: list[bytes] = []
    marks: list[tuple[int, int]] = []
    block, damage = b"-", ""
    try:
        while block and text <= reach:
            try:
                block = stream.read(want // PLACES) or b""
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
    finally:
        source.close()
    if not block and step == 1:
        found = Pieces(name, source.size, [b"".join(kept)], text, f"all of it{damage}")
    else:
        texts = [_cut_to_games(piece, first=place == 0) for place, piece in enumerate(kept)]
        if block:
            found = _extrapolate(source, texts, text, marks)
        else:
            found = Pieces(name, source.size, texts, text, f"{len(kept)} places over all of it{damage}")
    if not any(found.texts):
        raise DumpError(f"{name} holds no whole game in what was read of it")
    return found


def _cut_to_games(text: bytes, first: bool) -> bytes:
    """Return the whole games of a part of a dump, which may be its first."""
    begins = [0] * first + [found.end() for found in _GAME.finditer(text)]
    return text[begins[0] : begins[-1]] if begins else b""


def _extrapolate(source: Source, texts: list[bytes], text: int, marks: list[tuple[int, int]]) -> Pieces:
    """Return the pieces of a dump that was not read to its end, with its length by the bytes of text per raw byte."""
    if source.size is None:
        basis = f"the first {text >> 20} MiB of standard input, whose length is unknown: figures are of these"
        return Pieces(source.name, None, texts, text, basis, whole=False)
    basis = f"the first {text >> 20} MiB of its text only: the rest may differ"
    (first_raw, first_text), (raw, decoded) = marks[0], marks[-1]
    ratio = (decoded - first_text) / (raw - first_raw) if len(marks) > 1 else text / max(raw, 1)
    ratios = [(b[1] - a[1]) / (b[0] - a[0]) for a, b in pairwise(marks)]
    error = float(np.std(ratios, ddof=1) / len(ratios) ** 0.5 / np.mean(ratios)) if len(ratios) > 1 else 0.0
    return Pieces(source.name, source.size, texts, source.size * ratio, basis, error, whole=False)
