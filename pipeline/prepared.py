"""What the workers of one machine load, loaded by the process that they are forked from (pipeline/workers.py).

Importing this does it: the forkserver imports modules by name and calls nothing. One game is ingested into a folder that
is thrown away, so that the kernels of an ingest, and what pyarrow sets up at its first file, are there in every worker.
"""

import tempfile
from contextlib import suppress
from pathlib import Path

import numpy as np

from pipeline.chunk import ChunkTask, IngestConfig, encode_chunk, release_buffers
from pipeline.shards import PARTS
from pipeline.sources import Chunk

GAME = b"""[Event "Rated"]
[Site "https://lichess.org/fianchet"]
[UTCDate "2026.01.01"]
[Result "1-0"]
[WhiteElo "1500"]
[BlackElo "1500"]
[TimeControl "600+5"]

1. e4 { [%eval 0.2] [%clk 0:10:00] } 1... f6 { [%eval 0.9] [%clk 0:10:00] } 2. d4 { [%clk 0:09:58] } 2... g5
{ [%eval #1] [%clk 0:09:57] } 3. Qh5# { [%clk 0:09:55] } 1-0
"""


def load() -> None:
    """Ingest the game; a disk that is full will be said by the work itself."""
    with suppress(OSError), tempfile.TemporaryDirectory(prefix="fianchetto-") as folder:
        (Path(folder) / PARTS).mkdir()
        encode_chunk(ChunkTask(Chunk(0, 0, 0, 0, GAME, np.zeros(1, dtype=np.int64)), folder, IngestConfig()))
    release_buffers()


load()
