"""Import modules and load kernels that take long: the fork server of tests/forked.py imports this.

It must not start threads, which a fork would lose: no Parquet file is read and nothing is trained.
"""

import tempfile
from pathlib import Path

import numpy as np
import pytest  # noqa: F401 - the main module of the tests, which multiprocessing imports again
import torch
import torch._dynamo  # the first optimizer would import it

import pipeline.cli.main
import pipeline.finetune.loop
import pipeline.matches.arena
import pipeline.selfplay.job
import pipeline.training.train  # noqa: F401
from engine.evaluation import evaluator, handwritten
from engine.player.player import warm_up
from pipeline.dumps.chunks import Chunk
from pipeline.ingest.chunk import ChunkTask, IngestConfig, encode_chunk, release_buffers
from pipeline.storage.job_folder import DATASET_KIND, JobFolder

GAME = (
    b'[Event "Rated"]\n[Site "https://lichess.org/fianchet"]\n[Result "1-0"]\n\n1. e4 f6 2. d4 '
    b"g5 3. Qh5# 1-0\n"
)


def load_ingest() -> None:
    """Load the kernels of an ingest."""
    with tempfile.TemporaryDirectory(prefix="fianchetto-") as folder:
        JobFolder(Path(folder), DATASET_KIND, ValueError).make_notes_folder()
        chunk = Chunk(0, 0, 0, 0, GAME, np.zeros(1, dtype=np.int64))
        encode_chunk(ChunkTask(chunk, folder, IngestConfig()))
    release_buffers()


torch.set_num_threads(1)
load_ingest()
for evaluate in (evaluator.uniform, handwritten.evaluate):
    warm_up(evaluate)
