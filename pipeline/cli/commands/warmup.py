"""The command `warmup`."""

import gc
import multiprocessing
import tempfile
from collections.abc import Callable
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path
from typing import Any

import chess
import zstandard

from engine.compiling import watch_compilations
from engine.progress import Progress, Tick, silent
from model.settings import settings
from pipeline.cli.commands.base import BaseCommand
from pipeline.errors import ConfigError
from pipeline.samples.shipped import SAMPLE_DUMP


@settings(ConfigError)
class Warmup(BaseCommand):
    """Compile all kernels now (about a minute), so that later commands do not wait."""

    def run(self) -> dict[str, Any]:
        """Compile the kernels that are not cached yet."""
        self.call_with_progress(compile_kernels)
        return {"text": "all kernels are compiled"}


def compile_kernels(progress: Progress = silent, players: bool = True) -> None:
    """Run kernels once, so that Numba compiles and caches them.

    A second process shares the work. Without `players`, the kernels of search and self-play are
    left out: training and reports do not use them.
    """
    spawn = multiprocessing.get_context("spawn")
    compiled = spawn.Value("i", 0)
    work = _evaluate_and_play if players else _evaluate
    second = spawn.Process(target=_count_compilations, args=(work, compiled), daemon=True)
    second.start()
    _count_compilations(_use_datasets, compiled, progress)
    second.join()
    if second.exitcode:
        work()  # raises the error here


def _count_compilations(
    work: Callable[[], None], compiled: "Synchronized[int]", progress: Progress = silent
) -> None:
    """Call `work`; count the kernels that it compiles in `compiled`, which both processes share."""

    def count() -> None:
        with compiled.get_lock():
            compiled.value += 1
        progress(Tick(compiled.value, None, "kernels"))

    gc.disable()  # compilation allocates much and frees little: collections take a tenth of it
    try:
        with watch_compilations(count):
            work()
    finally:
        gc.enable()


def _use_datasets() -> None:
    """Ingest a few games of the sample, and read and encode their rows."""
    from pipeline.dataset.batches import Batches
    from pipeline.dataset.files.columns import PLANE_FORMATS
    from pipeline.dataset.files.stored_planes import pack_planes
    from pipeline.ingest.chunk import IngestConfig
    from pipeline.ingest.job import ingest

    with SAMPLE_DUMP.open("rb") as file, zstandard.ZstdDecompressor().stream_reader(file) as reader:
        text = reader.read(100_000)
    with tempfile.TemporaryDirectory(prefix="fianchetto-warmup-") as name:
        folder = Path(name)
        plain = folder / "games.pgn"
        plain.write_bytes(text[: text.rindex(b"\n\n[Event ") + 2])  # end with a whole game
        # Text from an archive has another array type than text from a plain file.
        for planes_format, dump in zip(PLANE_FORMATS, (plain, SAMPLE_DUMP), strict=True):
            config = IngestConfig(planes=planes_format, test_share=0.0, val_share=0.0)
            dataset = folder / planes_format
            ingest([str(dump)], dataset, config, workers=1)
            batch = next(Batches([dataset], "train", batch_size=1).from_step(0))
    pack_planes(batch["planes"], batch)


def _evaluate() -> None:
    """Evaluate and draw a position, as training and reports do."""
    from engine.encoding.attacks import attack_planes
    from engine.encoding.planes import planes_of
    from engine.evaluation.handwritten import evaluate
    from engine.evaluation.move_features import legal_move_features
    from pipeline.evaluation.charts import decode_board

    planes = planes_of([chess.Board()])
    evaluate(planes), legal_move_features(planes), attack_planes(planes)
    decode_board(planes[0], castling=0, ep_file=255, ply=0)


def _evaluate_and_play() -> None:
    from engine.evaluation.evaluator import uniform
    from engine.evaluation.handwritten import evaluate
    from engine.player.player import warm_up
    from engine.search import SearchConfig
    from engine.selfplay.generate import SelfPlayConfig, play_games

    _evaluate()
    for evaluator in (evaluate, uniform):  # they return arrays of different types
        warm_up(evaluator)
    for algorithm in ("puct", "gumbel"):
        search = SearchConfig(algorithm=algorithm, simulations=16, nodes=1024)
        next(play_games(evaluate, search, SelfPlayConfig(width=2, most_plies=2), games=2))
