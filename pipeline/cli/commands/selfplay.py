"""The command that makes games: selfplay."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tyro

from pipeline.cli.commands.base import Common, Interrupt
from pipeline.cli.progress import bar
from pipeline.selfplay.config import ExploreConfig


@dataclass(frozen=True, kw_only=True, slots=True)
class SelfPlay(Common):
    """Let a checkpoint play itself, and make a dataset of the games to train on.

    The directory gets shards as `fianchetto ingest` makes them, with what the search thought, games.pgn and games.jsonl. The
    same command continues a run that was stopped or killed; a finished one is left as it is.
    """

    out: Path
    """Directory of the dataset."""
    checkpoint: Path | None = None
    """Directory of the checkpoint that plays; none for the explorers hand-written and uniform."""
    generation: int = 0
    """Number of the generation, from 0: decides the noise, and which games they are."""
    generations: int = 1
    """How many there will be."""
    workers: int = 0
    """Processes to use; 0 for one a core, or one where the network runs on a GPU."""
    engine: str = "local"
    """What plays: local, ray (its own Ray on this machine), ray:HOST:PORT or ray://HOST:PORT; Ray's nodes share --out."""
    config: tyro.conf.OmitArgPrefixes[ExploreConfig] = field(default_factory=ExploreConfig)
    """How they play."""

    def run(self) -> dict[str, Any]:
        """Play and give the manifest's summary."""
        from pipeline.selfplay.play import explore
        from pipeline.selfplay.statistics import text_of

        stop = Interrupt()
        with bar("selfplay") as progress:
            manifest = explore(
                self.checkpoint,
                self.config,
                self.out,
                generation=self.generation,
                generations=self.generations,
                engine=self.engine,
                workers=self.workers,
                progress=progress,
                stop=stop,
            )
        told = {name: manifest[name] for name in ("selfplay", "positions", "lineage", "games", "config")}
        return {"out": str(self.out), **told, "text": text_of(manifest)}
