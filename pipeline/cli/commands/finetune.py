"""The command that fine-tunes: finetune."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from pipeline.cli.commands.base import Common, Interrupt
from pipeline.cli.progress import bar
from pipeline.finetune.config import FinetuneConfig


@dataclass(frozen=True, kw_only=True, slots=True)
class Finetune(Common):
    """Fine-tune a checkpoint by self-play, generation by generation; the same command continues a loop that was stopped.

    A generation plays games, trains a candidate on them and on human rows, and has it meet the best in a match that ends by
    SPRT. Only one that wins, holds its own against the supervised seed and still plays people's moves is promoted. The games
    are the hand-written player's, the quickest teacher on a CPU; `--explore.explorer network --explore.search.simulations 16
    --explore.search.considered 8` has the best network play them itself. `OUT/best` is a checkpoint for every other command;
    generations.csv and curves.png tell the story.
    """

    checkpoint: Path
    """Directory of the supervised checkpoint to begin with."""
    out: Path
    """Directory of the loop."""
    positions: tuple[Path, ...] = ()
    """Human datasets: to mix into training, and to measure on how much is forgotten."""
    config: Annotated[FinetuneConfig, tyro.conf.arg(name="")]
    """The loop."""

    def run(self) -> dict[str, Any]:
        """Run the loop and give its result."""
        from pipeline.finetune.loop import finetune

        stop = Interrupt()
        with bar("finetune") as progress:
            return finetune(self.checkpoint, self.config, self.out, human=self.positions, progress=progress, stop=stop)
