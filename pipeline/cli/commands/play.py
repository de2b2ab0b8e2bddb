"""Commands that play and review: uci, play, review."""

import logging
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from engine.errors import UserError
from engine.evaluation.evaluator import Evaluator
from engine.json_files import read_json, safe_text, validate_content
from engine.uci.options import Options
from model.card import CARD_FILE, Card, read_player
from model.settings import settings
from pipeline.cli.commands.base import BaseCommand
from pipeline.cli.progress import show_progress
from pipeline.errors import ConfigError
from pipeline.samples.shipped import EMBEDDED_CHECKPOINT

MAX_PLAYER_NAME_CHARS = 103
"""Maximum number of characters of an imitated player's names in the line that GUIs show."""


@settings(ConfigError)
class Uci(BaseCommand):
    """Play as a UCI engine, for a chess GUI or a match runner.

    The default player is the embedded network, or the hand-written evaluator if there is none.
    """

    basic: ClassVar = "checkpoint evaluator"

    checkpoint: Path | None = None
    """Directory of the checkpoint to play; by default the embedded network, if it is installed."""
    evaluator: Literal["hand-written", "uniform"] | None = None
    """Evaluator instead of a network: hand-written, or uniform (all moves are equally likely)."""

    def run(self) -> dict[str, Any]:
        """Answer UCI commands until `quit` or the end of the input."""
        from importlib.metadata import version

        from engine.uci import Engine

        if self.checkpoint is not None and self.evaluator is not None:
            raise ConfigError("give --checkpoint or --evaluator, not both")
        # the engine itself announces compilation, by UCI's `info string`
        logging.getLogger("engine.compiling").disabled = True
        network = self.checkpoint
        if network is None and self.evaluator is None and EMBEDDED_CHECKPOINT.is_dir():
            network = EMBEDDED_CHECKPOINT
        if network is not None:
            require_card(network)
        player = f"{self.evaluator or 'hand-written'} evaluator"
        if network is not None:
            player = f"network in {network}"
        options, imitated = make_default_options(network)
        name = f"Fianchetto {version('fianchetto')}"
        engine = Engine(make_loader(network, self.evaluator), _write, options=options, name=name)
        _write(f"info string plays by the {player}{imitated}\n")
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # end at once, as os._exit does
        try:
            engine.serve(sys.stdin.buffer)
        except KeyboardInterrupt:
            os._exit(130)
        # os._exit, because an ordinary exit fails while a thread waits for input
        except UserError as error:
            print(f"fianchetto: {error}", file=sys.stderr, flush=True)  # noqa: T201
            sys.stdout.flush()
            os._exit(2)
        sys.stdout.flush()
        # Exit at once: unloading torch takes 0.8 s, and a compiling thread cannot be ended.
        os._exit(0)


def require_card(directory: Path) -> None:
    """Raise ConfigError if a directory is not a checkpoint, and tell the GUI."""
    path, hint = directory / CARD_FILE, ": this is not a checkpoint's card"
    try:
        if not path.is_file():
            raise ConfigError(f"{directory} is not a checkpoint: it has no {CARD_FILE}")
        validate_content(path, read_json(path, ConfigError), Card, ConfigError, hint=hint)
    except ConfigError as error:
        _write(f"info string {error}\n")
        raise


def make_default_options(network: Path | None) -> tuple[Options, str]:
    """Return the engine's initial options, and ", like NAME at RATING" if it imitates a player.

    An imitation samples moves from its policy at the player's own rating, so it plays each opening
    as often as the player does. It always plays the moves in its book.
    """
    player = None if network is None else read_player(network)
    if player is None:
        return Options(), ""
    names = safe_text(" or ".join(map(repr, player.names)), MAX_PLAYER_NAME_CHARS, quote=False)
    imitated = f", like {names}" + (f" at {player.rating}" if player.rating else "")
    return Options(style="policy", temperature=1.0, rating=player.rating), imitated


def make_loader(
    network: Path | None, evaluator: str | None
) -> Callable[[str | None, int], Evaluator]:
    """Return a function that loads a player, given a directory or None, and a number of threads.

    For None, it loads the checkpoint `network`, or the evaluator if that is None too. A network
    with a model.onnx (`fianchetto export`) is loaded without torch, which takes a second to import.
    """

    def load(directory: str | None, threads: int) -> Evaluator:
        from engine.evaluation.evaluator import uniform
        from engine.evaluation.handwritten import evaluate
        from model.inference.onnx_evaluator import find_export

        checkpoint = Path(directory) if directory else network
        if checkpoint is None:
            return uniform if evaluator == "uniform" else evaluate
        exported = find_export(checkpoint, threads=threads)
        if exported is not None:
            return exported
        import torch

        from model.inference.evaluator import evaluator as open_checkpoint

        torch.set_num_threads(threads)
        return open_checkpoint(checkpoint)

    return load


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


@settings(ConfigError)
class Play(BaseCommand):
    """Open a board in the browser: play a network, ask what humans would play, review games."""

    basic: ClassVar = "checkpoint port host"

    checkpoint: tuple[Path, ...] = ()
    """Directories of checkpoints to offer, besides the embedded one and those in
    datasets/checkpoints."""
    port: Annotated[int, Field(ge=0, le=65535)] = 8000
    """Port of the page; change it if another program uses 8000."""
    host: str = "127.0.0.1"
    """Address to listen on; use 0.0.0.0 in a container, and publish its port on 127.0.0.1."""

    def run(self) -> dict[str, Any]:
        """Serve the page until Ctrl-C."""
        from model.checkpoint import read_card
        from pipeline.board.networks import Networks
        from pipeline.board.server import serve

        for directory in self.checkpoint:
            read_card(directory)  # raises CheckpointError
        serve(Networks(self.checkpoint), self.port, self.host)
        return {}


@settings(ConfigError)
class Review(BaseCommand):
    """Review a game: how much each move lost, and what players of that rating play.

    With --player, review up to 500 games of one player: the most frequent mistakes, the results by
    opening compared with what the ratings predict, and time trouble.
    """

    arguments: ClassVar = {"game": "PGN"}
    basic: ClassVar = "player checkpoint scores"

    game: Path
    """PGN file; without --player, its first game is reviewed."""
    player: str = ""
    """Name of a player, as in the tags White and Black; reviews up to 500 games of that player."""
    checkpoint: Path | None = None
    """Directory of the checkpoint that predicts human moves; by default the embedded network."""
    scores: Literal["auto", "game", "stockfish", "search"] = "auto"
    """Source of scores without --player: the game's [%eval] comments, Stockfish, or the network's
    search; auto takes the first available."""

    def run(self) -> dict[str, Any]:
        """Return the review of the first game, or of all games of --player."""
        import model
        from pipeline.board.networks import read_people
        from pipeline.board.review import ReviewRequest, review
        from pipeline.evaluation.game_texts import read_dump
        from pipeline.storage.tables import align_columns

        if self.player:
            return self._review_games()
        pgn = next(read_dump(str(self.game)), b"").decode("utf-8", "replace")
        player = model.load(self.checkpoint or EMBEDDED_CHECKPOINT, device="cpu")
        request, people = (
            ReviewRequest(pgn=pgn, source=self.scores),
            read_people(self.checkpoint or EMBEDDED_CHECKPOINT),
        )
        first, *steps, last = review(request, player, people=people)
        rows = [step["row"] for step in steps]
        result: dict[str, Any] = {**first["header"], **last["summary"], "rows": rows}
        moments = [rows[index]["text"] for index in result["moments"]] or ["No move stands out."]
        heads, *sides = result["table"]
        lines = [result["title"], result["about"], *moments, align_columns(heads, sides)]
        return result | {"text": "\n".join(lines)}

    def _review_games(self) -> dict[str, Any]:
        from engine.progress import Tick
        from pipeline.board.game_reviews import GamesRequest, format_review, review_games
        from pipeline.board.lichess import MAX_PGN_BYTES
        from pipeline.evaluation.game_texts import read_dump

        data = b""
        for block in read_dump(str(self.game)):
            data += block
            if len(data) > MAX_PGN_BYTES:
                limit = f"{MAX_PGN_BYTES >> 20} MiB of PGN text"
                raise ConfigError(f"{self.game} has more than {limit}: split it")
        request = GamesRequest(pgn=data.decode("utf-8", "replace"), name=self.player)
        steps = review_games(request, self.checkpoint or EMBEDDED_CHECKPOINT)
        header = next(steps)["header"]
        summary: dict[str, Any] = {}
        with show_progress("review") as progress:
            for step in steps:
                progress(Tick(step["done"], step["of"], "games"))
                summary = step.get("summary", summary)
        return {**header, **summary, "text": format_review(header, summary)}
