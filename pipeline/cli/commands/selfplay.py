"""Commands by which a network teaches itself: selfplay, reanalyse, finetune."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from pipeline.cli.commands.base import Common, Interrupt
from pipeline.cli.endings import next_command
from pipeline.cli.progress import bar
from pipeline.finetune.config import FinetuneConfig
from pipeline.reanalyse.config import ReanalyseConfig
from pipeline.selfplay.config import ExploreConfig


@dataclass(frozen=True, kw_only=True, slots=True)
class SelfPlay(Common):
    """Let a checkpoint play against itself, and make a dataset of the games.

    The directory gets shards as `fianchetto ingest` makes them, with the search's visits and values, and games.pgn and
    games.jsonl. The same command continues a run that was stopped or killed, and leaves a finished one as it is.
    """

    basic: ClassVar = (
        "checkpoint out games explorer simulations leaves book seed width device generation workers engine"
    )

    out: Path
    """Directory of the dataset."""
    checkpoint: Path | None = None
    """Directory of the checkpoint that plays; not needed by the explorers hand-written and uniform."""
    generation: int = 0
    """Number of this generation, from 0; it selects the random numbers and the games."""
    generations: int = 1
    """Number of generations planned."""
    workers: int = 0
    """Processes to use; 0 for one per core, or one where the network runs on a GPU."""
    engine: str = "local"
    """Where to play: local, ray (a new Ray on this machine), ray:HOST:PORT or ray://HOST:PORT; Ray's nodes share --out."""
    explore: ExploreConfig = field(default_factory=ExploreConfig)
    """How to play."""

    def run(self) -> dict[str, Any]:
        """Play and return the manifest's summary."""
        from pipeline.dataset.files.shards import MANIFEST
        from pipeline.selfplay.play import explore
        from pipeline.selfplay.statistics import text_of

        stop, already = Interrupt(), (self.out / MANIFEST).exists()
        with bar("selfplay") as progress:
            manifest = explore(
                self.checkpoint,
                self.explore,
                self.out,
                generation=self.generation,
                generations=self.generations,
                engine=self.engine,
                workers=self.workers,
                progress=progress,
                stop=stop,
            )
        summary = {name: manifest[name] for name in ("selfplay", "positions", "lineage", "games", "config")}
        start = () if self.checkpoint is None else ("--start", self.checkpoint)
        following = next_command(
            "train", "--positions", self.out, *start, "--minutes", 15, "--out", f"{self.out}-trained"
        )
        text = (
            f"{self.out} is complete{' already: nothing was done' if already else ''}\n{text_of(manifest)}\n{following}"
        )
        return {"out": str(self.out), **summary, "text": text}


@dataclass(frozen=True, kw_only=True, slots=True)
class Reanalyse(Common):
    """Search positions of datasets with a checkpoint, and make a dataset of what the search found.

    Positions are drawn from the train splits: by default one of each game, in fixed shares of openings, middlegames and
    endgames, undecided ones rather than decided ones. Each row has the search's policy in `visits`, its value in `root_value`
    and `best_value`, and ratings, clock and last move unknown. The same command continues a run that was stopped or killed,
    and leaves a finished one as it is.
    """

    basic: ClassVar = (
        "checkpoint positions out count simulations max_considered_actions seed width device workers engine"
    )

    checkpoint: Path
    """Directory of the checkpoint that searches."""
    positions: tuple[Path, ...]
    """Datasets or training sets to draw positions from."""
    out: Path
    """Directory of the dataset."""
    workers: int = 0
    """Processes to use; 0 for one per core, or one where the network runs on a GPU."""
    engine: str = "local"
    """Where to search: local, ray (a new Ray on this machine), ray:HOST:PORT or ray://HOST:PORT; Ray's nodes share --out."""
    reanalyse: ReanalyseConfig = field(default_factory=ReanalyseConfig)
    """What to search, and how."""

    def run(self) -> dict[str, Any]:
        """Search and return the manifest's summary."""
        from pipeline.dataset.files.shards import MANIFEST
        from pipeline.reanalyse.job import reanalyse, text_of

        stop, already = Interrupt(), (self.out / MANIFEST).exists()
        with bar("reanalyse") as progress:
            manifest = reanalyse(
                self.checkpoint,
                self.positions,
                self.reanalyse,
                self.out,
                engine=self.engine,
                workers=self.workers,
                progress=progress,
                stop=stop,
            )
        summary = {name: manifest[name] for name in ("searches", "positions", "lineage", "games", "config")}
        text = f"{self.out} is complete{' already: nothing was done' if already else ''}\n{text_of(manifest)}"
        return {"out": str(self.out), **summary, "text": text}


@dataclass(frozen=True, kw_only=True, slots=True)
class Finetune(Common):
    """Fine-tune a checkpoint by its own search, generation by generation; the same command continues a loop that was stopped.

    In a generation the best network searches positions of --positions, a candidate is trained on what was found and on
    people's moves, and plays the best network in a match that ends by SPRT. A candidate is promoted if it wins, does not lose
    to the supervised checkpoint and still predicts people's moves. A generation takes an hour or two on two cores. With
    `--explorer network` the best network plays games instead; with `--explorer hand-written` the hand-written player does,
    from whom a network of a few minutes can learn (pipeline/finetune/README.md has the settings). `OUT/best` is an ordinary
    checkpoint; generations.csv and curves.png show each generation.
    """

    basic: ClassVar = "checkpoint positions out generations minutes workers engine explorer force seed"

    checkpoint: Path
    """Directory of the supervised checkpoint to begin with."""
    out: Path
    """Directory of the fine-tuning."""
    positions: tuple[Path, ...] = ()
    """Datasets of human games: searched, mixed into training, and used to measure how much is forgotten."""
    finetune: FinetuneConfig
    """The loop."""

    def run(self) -> dict[str, Any]:
        """Run all generations and return the result."""
        from pipeline.finetune.loop import finetune

        stop = Interrupt()
        with bar("finetune") as progress:
            result = finetune(
                self.checkpoint, self.finetune, self.out, human=self.positions, progress=progress, stop=stop
            )
        match = f"{self.out}-match"
        following = next_command(
            "arena", result["best"], self.checkpoint, "--simulations", 64, "--games", 100, "--out", match
        )
        return result | {"text": f"{result['text']}\n{following}"}
