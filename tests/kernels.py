"""Compile what the suite will run, once, while the linters have the other core: `python -m tests.kernels`.

Processes that start together with nothing compiled would each compile all of it: the kernels, and Python's modules where the
environment forbids to keep what an import compiles.
"""

import compileall
import tempfile
from pathlib import Path

from engine.encoding.attacks import attack_planes
from engine.evaluation.evaluator import uniform
from engine.evaluation.handwritten import evaluate
from engine.evaluation.move_features import legal_move_features
from engine.jit_cache import ROOMS
from engine.search import SearchConfig
from engine.selfplay.generate import SelfPlayConfig, play_games
from engine.uci.thinking import warm_up
from pipeline.dataset.batches import Batches
from pipeline.ingest.chunk import IngestConfig
from pipeline.ingest.job import ingest
from pipeline.samples.shipped import SAMPLE
from tests.conftest import REPOSITORY
from tests.pipeline.datasets import random_game


def compiled() -> None:
    """Read a few games into a dataset and out of it, take a row's features, search with both algorithms, play two moves."""
    with tempfile.TemporaryDirectory() as folder:
        dump = Path(folder) / "games.pgn"
        dump.write_text("\n".join(random_game(seed) for seed in range(4)))
        out = Path(folder) / "out"
        ingest([str(dump)], out, IngestConfig(test_share=0.0, val_share=0.0), workers=1)
        # a dump of frames gives its text as another kind of array
        ingest([str(SAMPLE)], Path(folder) / "sample", IngestConfig(), workers=1)
        planes = next(Batches([out], "train", batch_size=1).from_step(0))["planes"]
        legal_move_features(planes), attack_planes(planes)
    for evaluator in (evaluate, uniform):  # whose answers are another kind of array
        warm_up(evaluator)
    for algorithm in ("puct", "gumbel"):
        search = SearchConfig(algorithm=algorithm, simulations=16, nodes=1024)
        next(play_games(evaluate, search, SelfPlayConfig(width=2, most_plies=2), games=2))


if __name__ == "__main__":
    for room in (*ROOMS, "fianchetto", "tests"):
        compileall.compile_dir(REPOSITORY / room, quiet=1)
    compiled()
