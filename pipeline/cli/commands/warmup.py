"""The command warmup."""

import tempfile
from pathlib import Path
from typing import Any

import zstandard

from engine.compiling import compilations
from engine.progress import Progress, Tick, silent
from model.settings import settings
from pipeline.cli.commands.base import Common
from pipeline.cli.progress import bar
from pipeline.errors import ConfigError
from pipeline.samples.shipped import SAMPLE


@settings(ConfigError)
class Warmup(Common):
    """Compile all kernels now, in a minute or two, so that no later command waits for it."""

    def run(self) -> dict[str, Any]:
        """Compile what is not compiled yet."""
        with bar("warmup") as progress:
            compile_kernels(progress)
        return {"text": "all kernels are compiled"}


def compile_kernels(progress: Progress = silent) -> None:
    """Run every kernel once on a few games, so that Numba compiles and caches it."""
    compiled = 0

    def count() -> None:
        nonlocal compiled
        compiled += 1
        progress(Tick(compiled, None, "kernels"))

    with tempfile.TemporaryDirectory(prefix="fianchetto-warmup-") as folder, compilations(count):
        _ingest_and_read(Path(folder))
        _search()
        _play()


def _ingest_and_read(folder: Path) -> None:
    from engine.encoding.attacks import attack_planes
    from engine.evaluation.move_features import legal_move_features
    from pipeline.dataset.batches import Batches
    from pipeline.ingest.chunk import IngestConfig
    from pipeline.ingest.job import ingest

    with SAMPLE.open("rb") as file, zstandard.ZstdDecompressor().stream_reader(file) as reader:
        text = reader.read(100_000)
    plain = folder / "games.pgn"
    plain.write_bytes(text[: text.rindex(b"\n\n[Event ") + 2])  # whole games
    # Numba compiles for each type: text from an archive is another type of array than from a file.
    for name, dump in (("plain", plain), ("archive", SAMPLE)):
        ingest([str(dump)], folder / name, IngestConfig(test_share=0.0, val_share=0.0), workers=1)
    planes = next(Batches([folder / "plain"], "train", batch_size=1).from_step(0))["planes"]
    legal_move_features(planes), attack_planes(planes)


def _search() -> None:
    from engine.evaluation.evaluator import uniform
    from engine.evaluation.handwritten import evaluate
    from engine.player.player import warm_up

    for evaluator in (evaluate, uniform):  # they return different types of arrays
        warm_up(evaluator)


def _play() -> None:
    from engine.evaluation.handwritten import evaluate
    from engine.search import SearchConfig
    from engine.selfplay.generate import SelfPlayConfig, play_games

    for algorithm in ("puct", "gumbel"):
        search = SearchConfig(algorithm=algorithm, simulations=16, nodes=1024)
        next(play_games(evaluate, search, SelfPlayConfig(width=2, most_plies=2), games=2))
