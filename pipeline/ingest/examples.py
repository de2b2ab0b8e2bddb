"""Find the first dropped game of each reason: its place in the dump and an excerpt of its text.

The text is not trusted: it is shortened, and its control characters are escaped.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.dumps.chunks import Chunk
from pipeline.ingest.filters import GAME_STATUS
from pipeline.ingest.games import TaggedGames
from pipeline.pgn import replay, tags

EXCERPT_CHARS = 60
"""Maximum characters of an excerpt."""
EXCERPT_BYTES = 4 * EXCERPT_CHARS
"""Bytes of the dump to read for an excerpt."""
BYTES_BEFORE = 20
"""Bytes to show before the token at which replay failed."""
SHOWN_TAGS = {
    replay.VARIANT: (tags.VARIANT, tags.FEN),  # the FEN, if it has castling rights of Chess960
    replay.BAD_FEN: (tags.FEN,),
}
"""Tags to show for a status: the first one that the game has."""
START_REASONS = (replay.BAD_ROW, *range(len(replay.STATUS), len(GAME_STATUS)))
"""Statuses for which the start of the game is shown: broken rows, and games dropped by a filter."""


def find_examples(
    tagged: TaggedGames, text: NDArray[np.uint8], chunk: Chunk
) -> dict[str, dict[str, Any]]:
    """Return the first dropped game of each reason, with `source`, `offset`, `site` and `text`.

    `text` is the chunk's text. The offset is in bytes from the start of the decompressed dump.
    """
    examples = {}
    statuses, first = np.unique(tagged.games.status, return_index=True)
    for status, game in zip(statuses.tolist(), first.tolist(), strict=True):
        if status == replay.USED:
            continue
        start, end = _find_excerpt(tagged, game, status)
        if not text[start:end].tobytes().strip():
            start = int(tagged.games.start[game])
        examples[GAME_STATUS[status]] = {
            "source": chunk.source,
            "offset": chunk.offset + int(tagged.games.start[game]),
            "site": _escape_excerpt(text, *tagged.spans[game, tags.SITE].tolist()),
            "text": _escape_excerpt(text, start, end),
        }
    return examples


def _find_excerpt(tagged: TaggedGames, game: int, status: int) -> tuple[int, int]:
    """Return the range of bytes that shows why a game was dropped."""
    start, end = (int(tagged.games.start[at]) for at in (game, game + 1))
    if tagged.is_evaluations or status in START_REASONS:
        return start, end
    for tag in SHOWN_TAGS.get(status, ()):
        if tagged.spans[game, tag, 1]:
            first, last = tagged.spans[game, tag].tolist()
            return first, last
    first = int(tagged.games.movetext[game])
    return max(int(tagged.games.stop[game]) - BYTES_BEFORE, first), end


def _escape_excerpt(text: NDArray[np.uint8], start: int, end: int) -> str:
    """Return the start of untrusted text on one line, with escaped control characters."""
    data = text[start : min(end, start + EXCERPT_BYTES)].tobytes()
    words = data.decode("utf-8", "backslashreplace")[: 2 * EXCERPT_CHARS].split()
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode()
        for char in " ".join(words)
    )[:EXCERPT_CHARS]


def merge_examples(
    notes: Iterable[Mapping[str, Any]], sources: Sequence[Mapping[str, Any]]
) -> dict[str, dict[str, Any]]:
    """Return the first example of each reason in all chunks' notes, with its place as `where`."""
    merged: dict[str, dict[str, Any]] = {}
    for note in notes:
        for reason, example in note.get("examples", {}).items():
            source = sources[example["source"]]
            # for a converted input, the offset is that of the conversion: name the row instead
            row = example["site"] if source.get("input") else ""
            place = row or f"byte {example['offset']:,}"
            where = {"where": f"{place} of {source['name']}"}
            merged.setdefault(reason, where | {**example, "source": source["name"]})
    return {name: merged[name] for name in GAME_STATUS if name in merged}
