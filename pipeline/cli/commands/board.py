"""Commands of the board: play, review."""

from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from model.settings import settings
from pipeline.cli.commands.base import Common
from pipeline.errors import ConfigError
from pipeline.samples.shipped import EMBEDDED


@settings(ConfigError)
class Play(Common):
    """Open a board in the browser: play a network, ask what people would play, review games."""

    basic: ClassVar = "checkpoint port"

    checkpoint: tuple[Path, ...] = ()
    """Directories of checkpoints to offer beside the embedded one and those in
    datasets/checkpoints."""
    port: Annotated[int, Field(ge=0, le=65535)] = 8000
    """Port of the page on 127.0.0.1; change it if another program uses 8000."""

    def run(self) -> dict[str, Any]:
        """Serve until Ctrl-C, which is raised as in other commands."""
        from model.checkpoint import read_card
        from pipeline.board.networks import Networks
        from pipeline.board.server import serve

        for place in self.checkpoint:
            read_card(place)
        serve(Networks(self.checkpoint), self.port)
        return {}


@settings(ConfigError)
class Review(Common):
    """Review a game: the score that each move lost, and what people of that rating play."""

    arguments: ClassVar = {"game": "PGN"}
    basic: ClassVar = "checkpoint scores"

    game: Path
    """PGN file; its first game is reviewed."""
    checkpoint: Path = EMBEDDED
    """Directory of the checkpoint that predicts what people play."""
    scores: Literal["auto", "game", "stockfish", "search"] = "auto"
    """Source of scores: the game's [%eval] comments, Stockfish, or the network's search; auto takes
    the first available."""

    def run(self) -> dict[str, Any]:
        """Return the review."""
        import model
        from pipeline.board.review import ReviewRequest, review
        from pipeline.evaluation.game_texts import text_of
        from pipeline.storage.tables import aligned

        pgn = next(text_of(str(self.game)), b"").decode("utf-8", "replace")
        first, *steps, last = review(
            ReviewRequest(pgn=pgn, source=self.scores), model.load(self.checkpoint, device="cpu")
        )
        found: dict[str, Any] = (
            first["header"] | last["summary"] | {"rows": [step["row"] for step in steps]}
        )
        moments = [found["rows"][index]["text"] for index in found["moments"]] or [
            "No move stands out."
        ]
        lines = [
            found["title"],
            found["about"],
            *moments,
            aligned(found["table"][0], found["table"][1:]),
        ]
        return found | {"text": "\n".join(lines)}
