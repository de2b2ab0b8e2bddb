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
from pipeline.cli.commands.base import Common
from pipeline.cli.progress import bar
from pipeline.errors import ConfigError
from pipeline.samples.shipped import EMBEDDED

MAX_NAME_CHARS = 103
"""Maximum length of an imitated player's names in the line shown by GUIs."""


@settings(ConfigError)
class Uci(Common):
    """Play as a UCI engine, for a chess GUI or a match runner.

    The default player is the embedded network, or the hand-written evaluator if there is none.
    """

    basic: ClassVar = "checkpoint evaluator"

    checkpoint: Path | None = None
    """Directory of the checkpoint to play."""
    evaluator: Literal["hand-written", "uniform"] | None = None
    """Evaluator to play without a network: hand-written, or uniform (all moves equally likely)."""

    def run(self) -> dict[str, Any]:
        """Answer until `quit` or the end of the input."""
        from importlib.metadata import version

        from engine.uci import Engine

        if self.checkpoint is not None and self.evaluator is not None:
            raise ConfigError("give --checkpoint or --evaluator, not both")
        # the engine reports compiling itself, as UCI lines
        logging.getLogger("engine.compiling").disabled = True
        network = self.checkpoint
        if network is None and self.evaluator is None and EMBEDDED.is_dir():
            network = EMBEDDED
        if network is not None:
            require_card(network)
        player = f"{self.evaluator or 'hand-written'} evaluator"
        if network is not None:
            player = f"network in {network}"
        options, like = default_options(network)
        name = f"Fianchetto {version('fianchetto')}"
        engine = Engine(make_loader(network, self.evaluator), _write, options=options, name=name)
        _write(f"info string plays by the {player}{like}\n")
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # exit at once, as below
        try:
            engine.serve(sys.stdin.buffer)
        except KeyboardInterrupt:
            os._exit(130)
        # an ordinary exit fails while a thread waits for input
        except UserError as error:
            print(f"fianchetto: {error}", file=sys.stderr, flush=True)  # noqa: T201
            sys.stdout.flush()
            os._exit(2)
        sys.stdout.flush()
        # Exit at once: unloading torch takes 0.8 s, and a compiling thread cannot be ended.
        os._exit(0)


def require_card(directory: Path) -> None:
    """Raise ConfigError if a directory holds no checkpoint; also report it to the GUI."""
    path, hint = directory / CARD_FILE, ": this is not a checkpoint's card"
    try:
        if not path.is_file():
            raise ConfigError(f"{directory} holds no checkpoint: there is no {CARD_FILE} in it")
        validate_content(path, read_json(path, ConfigError), Card, ConfigError, hint=hint)
    except ConfigError as error:
        _write(f"info string {error}\n")
        raise


def default_options(network: Path | None) -> tuple[Options, str]:
    """Return the engine's initial options, and a phrase that names the player it imitates.

    An imitation samples moves from its policy at the player's own rating, so it plays each opening
    as often as the player does. It always plays the moves in its book.
    """
    imitated = None if network is None else read_player(network)
    if imitated is None:
        return Options(), ""
    names = safe_text(" or ".join(map(repr, imitated.names)), MAX_NAME_CHARS, quote=False)
    like = f", like {names}" + (f" at {imitated.rating}" if imitated.rating else "")
    return Options(style="policy", temperature=1.0, rating=imitated.rating), like


def make_loader(
    network: Path | None, evaluator: str | None
) -> Callable[[str | None, int], Evaluator]:
    """Return a function that loads a checkpoint, or the default network or evaluator for None.

    A network with a model.onnx (`fianchetto export`) is loaded without torch, which takes a second
    to import.
    """

    def load(directory: str | None, threads: int) -> Evaluator:
        from engine.evaluation.evaluator import uniform
        from engine.evaluation.handwritten import evaluate
        from model.inference.onnx_evaluator import find_export

        place = Path(directory) if directory else network
        if place is None:
            return uniform if evaluator == "uniform" else evaluate
        exported = find_export(place, threads=threads)
        if exported is not None:
            return exported
        import torch

        from model.inference.evaluator import evaluator as open_checkpoint

        torch.set_num_threads(threads)
        return open_checkpoint(place)

    return load


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


@settings(ConfigError)
class Play(Common):
    """Open a board in the browser: play a network, ask what humans would play, review games."""

    basic: ClassVar = "checkpoint port host"

    checkpoint: tuple[Path, ...] = ()
    """Directories of checkpoints to offer, besides the embedded one and those in
    datasets/checkpoints."""
    port: Annotated[int, Field(ge=0, le=65535)] = 8000
    """Port of the page; change it if another program uses 8000."""
    host: str = "127.0.0.1"
    """Address to listen on. In a container, 0.0.0.0: publish its port on 127.0.0.1."""

    def run(self) -> dict[str, Any]:
        """Serve until Ctrl-C."""
        from model.checkpoint import read_card
        from pipeline.board.networks import Networks
        from pipeline.board.server import serve

        for place in self.checkpoint:
            read_card(place)
        serve(Networks(self.checkpoint), self.port, self.host)
        return {}


@settings(ConfigError)
class Review(Common):
    """Review a game: the score that each move lost, and what players of that rating play.

    With --player, review up to 500 games of one player: the commonest mistakes, the openings
    compared with what the ratings predict, and time trouble.
    """

    arguments: ClassVar = {"game": "PGN"}
    basic: ClassVar = "player checkpoint scores"

    game: Path
    """PGN file; without --player, its first game is reviewed."""
    player: str = ""
    """Player whose games in the file are all reviewed, as named in the tags."""
    checkpoint: Path = EMBEDDED
    """Directory of the checkpoint that predicts human moves."""
    scores: Literal["auto", "game", "stockfish", "search"] = "auto"
    """Source of scores: the game's [%eval] comments, Stockfish, or the network's search; auto takes
    the first available."""

    def run(self) -> dict[str, Any]:
        """Return the review."""
        import model
        from pipeline.board.networks import read_people
        from pipeline.board.review import ReviewRequest, review
        from pipeline.evaluation.game_texts import read_dump
        from pipeline.storage.tables import align_columns

        if self.player:
            return self._review_games()
        pgn = next(read_dump(str(self.game)), b"").decode("utf-8", "replace")
        player = model.load(self.checkpoint, device="cpu")
        request, people = ReviewRequest(pgn=pgn, source=self.scores), read_people(self.checkpoint)
        first, *steps, last = review(request, player, people=people)
        rows = [step["row"] for step in steps]
        found: dict[str, Any] = {**first["header"], **last["summary"], "rows": rows}
        moments = [rows[index]["text"] for index in found["moments"]] or ["No move stands out."]
        heads, *sides = found["table"]
        lines = [found["title"], found["about"], *moments, align_columns(heads, sides)]
        return found | {"text": "\n".join(lines)}

    def _review_games(self) -> dict[str, Any]:
        """Return the review of all games of a player."""
        from engine.progress import Tick
        from pipeline.board.game_reviews import GamesRequest, format_review, review_games
        from pipeline.board.lichess import MAX_PGN_BYTES
        from pipeline.evaluation.game_texts import read_dump

        data = b""
        for block in read_dump(str(self.game)):
            data += block
            if len(data) > MAX_PGN_BYTES:
                raise ConfigError(f"{self.game} is larger than {MAX_PGN_BYTES >> 20} MiB: split it")
        request = GamesRequest(pgn=data.decode("utf-8", "replace"), name=self.player)
        steps = review_games(request, self.checkpoint)
        header = next(steps)["header"]
        summary: dict[str, Any] = {}
        with bar("review") as progress:
            for step in steps:
                progress(Tick(step["done"], step["of"], "games"))
                summary = step.get("summary", summary)
        return {**header, **summary, "text": format_review(header, summary)}
