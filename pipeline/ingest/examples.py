"""Find the first dropped game for each reason: its place in the dump and an excerpt of its text.

The text is not trusted: it is shortened, and its control characters are escaped.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.dumps.chunks import Chunk
from pipeline.ingest.filters import GAME_STATUS
from pipeline.ingest.games import Tagged
from pipeline.pgn import replay, tags

EXCERPT_CHARS = 60
"""Maximum characters of an excerpt."""
EXCERPT_BYTES = 4 * EXCERPT_CHARS
"""Bytes of the dump to read for an excerpt."""
BYTES_BEFORE = 20
"""Bytes shown before the token at which replay failed."""
SHOWN_TAGS = {
    replay.VARIANT: (tags.VARIANT, tags.FEN),  # Chess960 castling rights count as a variant too
    replay.BAD_FEN: (tags.FEN,),
}
"""Tags to show for a reason: the first that the game has."""
START_REASONS = (replay.BAD_ROW, *range(len(replay.STATUS), len(GAME_STATUS)))
"""Reasons for which the start of the game is shown: broken rows and filters."""


def find_examples(
    tagged: Tagged, text: NDArray[np.uint8], chunk: Chunk
) -> dict[str, dict[str, Any]]:
    """Return the first dropped game of each reason: `source`, byte `offset`, `site` and `text`."""
    found = {}
    statuses, first = np.unique(tagged.games.status, return_index=True)
    for status, game in zip(statuses.tolist(), first.tolist(), strict=True):
        if status == replay.USED:
            continue
        start, end = _find_excerpt(tagged, text, game, status)
        if not text[start:end].tobytes().strip():
            start = int(tagged.games.start[game])
        found[GAME_STATUS[status]] = {
            "source": chunk.source,
            "offset": chunk.offset + int(tagged.games.start[game]),
            "site": _escape(text, *tagged.spans[game, tags.SITE].tolist()),
            "text": _escape(text, start, end),
        }
    return found


def _find_excerpt(
    tagged: Tagged, text: NDArray[np.uint8], game: int, status: int
) -> tuple[int, int]:
    """Return the byte range of a dropped game that shows why it was dropped."""
    start, end = (int(tagged.games.start[at]) for at in (game, game + 1))
    if tagged.is_evaluations or status in START_REASONS:
        return start, end
    for tag in SHOWN_TAGS.get(status, ()):
        if tagged.spans[game, tag, 1]:
            first, last = tagged.spans[game, tag].tolist()
            return first, last
    first = int(tagged.games.movetext[game])
    return max(int(tagged.games.stop[game]) - BYTES_BEFORE, first), end


def _escape(text: NDArray[np.uint8], start: int, end: int) -> str:
    """Return an excerpt of untrusted text on one line."""
    words = (
        text[start : min(end, start + EXCERPT_BYTES)].tobytes().decode("utf-8", "backslashreplace")
    )
    line = " ".join(words[: 2 * EXCERPT_CHARS].split())
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in line
    )[:EXCERPT_CHARS]


def merge_examples(
    notes: Iterable[Mapping[str, Any]], sources: Sequence[Mapping[str, Any]]
) -> dict[str, dict[str, Any]]:
    """Return the first example of each reason from all chunks' notes, with its dump's name."""
    found: dict[str, dict[str, Any]] = {}
    for note in notes:
        for reason, example in note.get("examples", {}).items():
            source = sources[example["source"]]
            # the offset is in the converted PGN
            row = example["site"] if source.get("input") else ""
            where = f"{row} of" if row else f"byte {example['offset']:,} of"
            here = {"where": f"{where} {source['name']}"}
            found.setdefault(reason, here | {**example, "source": source["name"]})
    return {name: found[name] for name in GAME_STATUS if name in found}
