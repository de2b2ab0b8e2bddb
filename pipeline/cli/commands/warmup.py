"""The command `warmup`."""

import multiprocessing
import tempfile
from collections.abc import Callable
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path
from typing import Any

import zstandard

from engine.compiling import compilations
from engine.progress import Progress, Tick, silent
from model.settings import settings
from pipeline.cli.commands.base import Common
from pipeline.errors import ConfigError
from pipeline.samples.shipped import SAMPLE_DUMP


@settings(ConfigError)
class Warmup(Common):
    """Compile all kernels now (about a minute), so that later commands do not wait."""

    def run(self) -> dict[str, Any]:
        """Compile the kernels that are not cached yet."""
        self.call(compile_kernels)
        return {"text": "all kernels are compiled"}


def compile_kernels(progress: Progress = silent) -> None:
    """Run every kernel once, so that Numba compiles and caches it.

    A second process compiles the kernels of players while this one compiles those of datasets.
    """
    spawn = multiprocessing.get_context("spawn")
    compiled = spawn.Value("i", 0)
    players = spawn.Process(target=_count_compilations, args=(_play, compiled), daemon=True)
    players.start()
    _count_compilations(_ingest_and_read, compiled, progress)
    players.join()
    if players.exitcode:
        _play()  # raises the error here


def _count_compilations(
    work: Callable[[], None], compiled: "Synchronized[int]", progress: Progress = silent
) -> None:
    """Do the work; add the number of kernels compiled to a counter shared by both processes."""

    def count() -> None:
        with compiled.get_lock():
            compiled.value += 1
        progress(Tick(compiled.value, None, "kernels"))

    with compilations(count):
        work()


def _ingest_and_read() -> None:
    """Ingest a few games of the sample, and read, encode and draw their rows."""
    from engine.encoding.attacks import attack_planes
    from engine.evaluation.move_features import legal_move_features
    from pipeline.dataset.batches import Batches
    from pipeline.dataset.files.columns import PLANE_FORMATS
    from pipeline.dataset.files.stored_planes import pack
    from pipeline.evaluation.charts import decode_board
    from pipeline.ingest.chunk import IngestConfig
    from pipeline.ingest.job import ingest

    with SAMPLE_DUMP.open("rb") as file, zstandard.ZstdDecompressor().stream_reader(file) as reader:
        text = reader.read(100_000)
    with tempfile.TemporaryDirectory(prefix="fianchetto-warmup-") as name:
        folder = Path(name)
        plain = folder / "games.pgn"
        plain.write_bytes(text[: text.rindex(b"\n\n[Event ") + 2])  # whole games
        # Text from an archive has another array type than text from a plain file.
        for form, dump in zip(PLANE_FORMATS, (plain, SAMPLE_DUMP), strict=True):
            config = IngestConfig(planes=form, test_share=0.0, val_share=0.0)
            ingest([str(dump)], folder / form, config, workers=1)
            batch = next(Batches([folder / form], "train", batch_size=1).from_step(0))
    planes = batch["planes"]
    pack(planes, batch), legal_move_features(planes), attack_planes(planes)
    decode_board(planes[0], castling=0, ep_file=255, ply=0)  # reports draw boards with it


def _play() -> None:
    """Search for moves, and play games of self-play."""
    from engine.evaluation.evaluator import uniform
    from engine.evaluation.handwritten import evaluate
    from engine.player.player import warm_up
    from engine.search import SearchConfig
    from engine.selfplay.generate import SelfPlayConfig, play_games

    for evaluator in (evaluate, uniform):  # they return different array types
        warm_up(evaluator)
    for algorithm in ("puct", "gumbel"):
        search = SearchConfig(algorithm=algorithm, simulations=16, nodes=1024)
        next(play_games(evaluate, search, SelfPlayConfig(width=2, most_plies=2), games=2))
