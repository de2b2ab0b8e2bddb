"""Read PGN text as ingest does, without a dataset on disk: sources, split, tags, replay."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from pipeline.dumps.chunks import Chunk, read_chunks
from pipeline.dumps.source import Source
from pipeline.ingest.games import TaggedGames, read_games
from pipeline.pgn import replay, tags
from pipeline.pgn.text import NO_CLOCK, NO_EVAL

CAPACITY = 1 << 15


@dataclass(frozen=True, slots=True)
class Game:
    """A game of a dump; a dropped one has no moves (label, promotion), evals and clocks."""

    offset: int
    length: int
    event: bytes
    status: str
    plies: int
    result: int
    moves: list[tuple[int, int]]
    evals: list[int | None]
    clocks: list[int | None]
    movetext: bytes
    tags: dict[str, bytes]


@cache
def _memory() -> replay.Rows:
    return replay.allocate_rows(CAPACITY + replay.MAX_PLIES + 2)


def replay_chunk(chunk: Chunk) -> tuple[TaggedGames, replay.Rows]:
    """Replay a chunk's games; return their tags and statuses, and a copy of the rows."""
    text = np.frombuffer(chunk.text, dtype=np.uint8)
    tagged = read_games(text, chunk.starts)
    parts: list[replay.Rows] = []
    game = 0
    while game < len(chunk.starts):
        game, filled = replay.replay(tagged.text, tagged.games, tagged.setups, game, _memory())
        parts.append(_memory()[:filled].copy())
    return tagged, np.concatenate(parts).view(np.recarray)


def games(path: Path, chunk_bytes: int = 1 << 24) -> Iterator[Game]:
    """Return the games of a dump as ingest sees them."""
    for chunk in read_chunks([Source(str(path))], chunk_bytes):
        tagged, rows = replay_chunk(chunk)
        seen, lengths, row = tagged.games, np.diff(tagged.games.start), 0
        moves = list(zip(rows.label.tolist(), rows.promotion.tolist(), strict=True))
        for at, start in enumerate(chunk.starts):
            status = replay.STATUS[seen.status[at]]
            plies = int(seen.plies[at])
            mine = slice(row, row + plies * (status == "used"))
            evals, clocks = rows.eval[mine].tolist(), rows.clock[mine].tolist()
            spans = zip(tags.TAGS, tagged.spans[at], strict=True)
            yield Game(
                chunk.offset + int(start),
                int(lengths[at]),
                bytes(chunk.text[slice(*tagged.spans[at, tags.EVENT])]),
                status,
                plies,
                int(seen.result[at]),
                moves[mine],
                [None if value == NO_EVAL else value for value in evals],
                [None if value == NO_CLOCK else value for value in clocks],
                chunk.text[int(seen.movetext[at]) : int(seen.start[at + 1])],
                {name: bytes(chunk.text[slice(*span)]) for name, span in spans if span[1]},
            )
            row = mine.stop
