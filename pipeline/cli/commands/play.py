"""The command uci."""

import logging
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, Literal

from engine.errors import UserError
from engine.evaluation.evaluator import Evaluator
from engine.json_files import check, read_json, shown
from engine.uci.options import Options
from model.card import CARD, Card, read_player
from model.settings import settings
from pipeline.cli.commands.base import Common
from pipeline.errors import ConfigError
from pipeline.samples.shipped import EMBEDDED

MOST_NAMES = 103
"""Maximum number of characters of a person's names that a GUI shows."""


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
        # the protocol reports compiling
        logging.getLogger("engine.compiling").disabled = True
        network = self.checkpoint or (
            EMBEDDED if self.evaluator is None and EMBEDDED.is_dir() else None
        )
        if network is not None:
            require_card(network)
        player = (
            f"network in {network}" if network else f"{self.evaluator or 'hand-written'} evaluator"
        )
        options, like = default_options(network)
        name = f"Fianchetto {version('fianchetto')}"
        engine = Engine(loader(network, self.evaluator), _write, options=options, name=name)
        _write(f"info string plays by the {player}{like}\n")
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # exit at once, as below
        try:
            engine.serve(sys.stdin.buffer)
        except KeyboardInterrupt:
            os._exit(130)
        # the thread that waits for input would make an ordinary exit fail
        except UserError as error:
            print(f"fianchetto: {error}", file=sys.stderr, flush=True)  # noqa: T201
            sys.stdout.flush()
            os._exit(2)
        sys.stdout.flush()
        # Exit at once: unloading torch takes 0.8 s, and a compiling thread cannot be ended.
        os._exit(0)


def require_card(directory: Path) -> None:
    """Raise ConfigError if a directory holds no checkpoint; the GUI sees the error too."""
    path = directory / CARD
    try:
        if not path.is_file():
            raise ConfigError(f"{directory} holds no checkpoint: there is no {CARD} in it")
        check(
            path,
            read_json(path, ConfigError),
            Card,
            ConfigError,
            hint=": this is not a checkpoint's card",
        )
    except ConfigError as error:
        _write(f"info string {error}\n")
        raise


def default_options(network: Path | None) -> tuple[Options, str]:
    """Return the options that the engine starts with, and in words whom it imitates.

    An imitation draws moves from its policy, at the person's own rating: so it plays their openings
    as often as they do.
    """
    imitated = None if network is None else read_player(network)
    if imitated is None:
        return Options(), ""
    names = shown(" or ".join(map(repr, imitated.names)), MOST_NAMES, quote=False)
    like = f", like {names}" + (f" at {imitated.rating}" if imitated.rating else "")
    return Options(style="policy", temperature=1.0, rating=imitated.rating), like


def loader(network: Path | None, evaluator: str | None) -> Callable[[str | None, int], Evaluator]:
    """Return a function that loads a checkpoint, or the default network or evaluator for None.

    A network with a model.onnx (`fianchetto export`) is loaded without torch, whose import takes a
    second.
    """

    def load(directory: str | None, threads: int) -> Evaluator:
        place = Path(directory) if directory else network
        if place is not None:
            return _open_network(place, threads)
        if evaluator == "uniform":
            from engine.evaluation.evaluator import uniform

            return uniform
        from engine.evaluation.handwritten import evaluate

        return evaluate

    return load


def _open_network(directory: Path, threads: int) -> Evaluator:
    from model.inference.onnx_evaluator import find_export

    found = find_export(directory, threads=threads)
    if found is not None:
        return found
    import torch

    from model.inference.evaluator import evaluator

    torch.set_num_threads(threads)
    return evaluator(directory)


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
