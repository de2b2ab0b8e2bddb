"""The command imitate."""

from dataclasses import field
from pathlib import Path
from typing import Any, ClassVar

from model.settings import settings
from pipeline.cli.commands.base import Common, Interrupt
from pipeline.cli.endings import next_command
from pipeline.cli.progress import bar
from pipeline.errors import ConfigError
from pipeline.ingest.filters import NAMES_HOLD_COMMAS
from pipeline.samples.shipped import EMBEDDED


@settings(ConfigError)
class Imitate(Common):
    """Train a network that plays like one person, on that person's games.

    The report measures on the newest tenth of the games, which are held out of training. Other
    held-out games decide how far the network moves away from the one that it starts from. OUT is a
    checkpoint, and OUT/report/report.html has the result. Run the same command again to continue.
    """

    arguments: ClassVar = {"sources": "GAMES..."}
    basic: ClassVar = "player out base stranger"

    sources: tuple[str, ...]
    """PGN files (plain, .zst, .bz2, .gz) or addresses that contain the person's games; other games
    are skipped."""
    player: tuple[str, ...] = field(metadata=NAMES_HOLD_COMMAS)
    """The person's name, exactly as in the tags White and Black; repeat it for other accounts."""
    out: Path
    """Directory of the checkpoint."""
    base: Path | None = None
    """Checkpoint to start from; by default the embedded network."""
    stranger: Path | None = None
    """Network of another person, measured on the same games for comparison."""

    def run(self) -> dict[str, Any]:
        """Train, and return the report without boards."""
        from pipeline.imitation.imitate import imitate
        from pipeline.imitation.page import imitation_text

        stop = Interrupt()
        with bar("imitate") as progress:
            result = imitate(
                self.sources,
                self.player,
                self.out,
                base=self.base or EMBEDDED,
                stranger=self.stranger,
                progress=progress,
                stop=stop,
            )
        shown = {
            name: value for name, value in result.items() if name not in ("openings", "boards")
        }
        page = f"report: {self.out}/report/report.html (also as text and JSON)"
        text = "\n".join(
            [imitation_text(result), page, next_command("play", "--checkpoint", self.out)]
        )
        return {"out": str(self.out), **shown, "text": text}
