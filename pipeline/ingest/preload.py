"""What the workers of one machine load, loaded by the process that they are forked from (pipeline/executors/local.py).

Importing this does it: the forkserver imports modules by name and calls nothing. One game is ingested into a folder that
is thrown away, so that the kernels of an ingest, and what pyarrow sets up at its first file, are there in every worker.
"""

import os
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from pipeline.executors.local import PARENT

LOOK_SECONDS = 0.3
"""How often it is looked whether anybody is there to be prepared for."""

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


@contextmanager
def wanted() -> Iterator[None]:
    """End this process when its parent is gone meanwhile: to compile for nobody would hold the parent's output open."""
    parent, over = int(os.environ.get(PARENT, os.getppid())), threading.Event()

    def watch() -> None:
        while not over.wait(LOOK_SECONDS):
            if os.getppid() != parent:
                os._exit(0)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()  # workers are forked from one thread


def load() -> None:
    """Ingest the game; what is wrong, a full disk say, will be said by the work itself."""
    import numpy as np

    from pipeline.dataset.files.shards import PARTS
    from pipeline.dumps.reader import Chunk
    from pipeline.ingest.chunk import ChunkTask, IngestConfig, encode_chunk, release_buffers

    with suppress(Exception), tempfile.TemporaryDirectory(prefix="fianchetto-") as folder:
        (Path(folder) / PARTS).mkdir()
        encode_chunk(ChunkTask(Chunk(0, 0, 0, 0, GAME, np.zeros(1, dtype=np.int64)), folder, IngestConfig()))
    release_buffers()


with wanted():
    load()
