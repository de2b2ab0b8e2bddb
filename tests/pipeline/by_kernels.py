"""Read the games of a dump as ingest does, without writing a dataset."""

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

BUFFER_ROWS = 1 << 15


@dataclass(frozen=True, slots=True)
class Game:
    """A game of a dump. Dropped games have no moves, evals and clocks."""

    offset: int
    length: int
    event: bytes
    status: str
    plies: int
    result: int
    moves: list[tuple[int, int]]
    """Label and promotion of each move."""
    evals: list[int | None]
    clocks: list[int | None]
    movetext: bytes
    tags: dict[str, bytes]


@cache
def _get_buffer() -> replay.Rows:
    return replay.allocate_rows(BUFFER_ROWS + replay.MAX_PLIES + 2)


def replay_chunk(chunk: Chunk) -> tuple[TaggedGames, replay.Rows]:
    """Replay a chunk's games; return them and a copy of their rows."""
    text = np.frombuffer(chunk.text, dtype=np.uint8)
    tagged = read_games(text, chunk.starts)
    parts: list[replay.Rows] = []
    game = 0
    while game < len(chunk.starts):
        game, filled = replay.replay(tagged.text, tagged.games, tagged.setups, game, _get_buffer())
        parts.append(_get_buffer()[:filled].copy())
    return tagged, np.concatenate(parts).view(np.recarray)


def games(path: Path) -> Iterator[Game]:
    """Yield the games of a dump, dropped ones too."""
    for chunk in read_chunks([Source(str(path))], 1 << 24):
        tagged, rows = replay_chunk(chunk)
        replayed, lengths, row = tagged.games, np.diff(tagged.games.start), 0
        moves = list(zip(rows.label.tolist(), rows.promotion.tolist(), strict=True))
        for at, start in enumerate(chunk.starts):
            status = replay.STATUS[replayed.status[at]]
            plies = int(replayed.plies[at])
            own_rows = slice(row, row + plies * (status == "used"))
            evals, clocks = rows.eval[own_rows].tolist(), rows.clock[own_rows].tolist()
            spans = zip(tags.TAGS, tagged.spans[at], strict=True)
            yield Game(
                chunk.offset + int(start),
                int(lengths[at]),
                bytes(chunk.text[slice(*tagged.spans[at, tags.EVENT])]),
                status,
                plies,
                int(replayed.result[at]),
                moves[own_rows],
                [None if value == NO_EVAL else value for value in evals],
                [None if value == NO_CLOCK else value for value in clocks],
                chunk.text[int(replayed.movetext[at]) : int(replayed.start[at + 1])],
                {name: bytes(chunk.text[slice(*span)]) for name, span in spans if span[1]},
            )
            row = own_rows.stop
