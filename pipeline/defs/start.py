"""The weights that a training starts from: the embedded network's for few games, else random."""

from dataclasses import replace
from pathlib import Path

from engine.errors import UserError
from engine.json_files import check, parse_json, read_json
from model.card import CARD, Card
from model.training.config import TrainConfig
from pipeline.dataset.dataset import Dataset
from pipeline.defs.launchpad.options import CheckpointOptions
from pipeline.defs.resources import Datasets
from pipeline.samples.shipped import EMBEDDED, SCRATCH_POSITIONS

TUNING_RATE = 5e-4
"""Learning rate of a training that starts from a network."""


def choose_start(
    options: CheckpointOptions, training_set: Path, out: Path, datasets: Datasets
) -> tuple[Path | None, TrainConfig, str]:
    """Return the checkpoint to start from, None for random weights, the configuration, and why.

    `auto` keeps the start of a run that `out` holds.
    """
    start, why = None, "start is set"
    if options.start == "auto" and (out / CARD).exists():
        start, why = _read_start(out, datasets), "the run that continues began there"
    elif options.start == "auto":
        count = count_positions(training_set)
        card = parse_json((EMBEDDED / CARD).read_bytes())
        is_own = card["preset"]["name"] == options.preset
        start = EMBEDDED if is_own and count < SCRATCH_POSITIONS else None
        why = f"{count:,} positions" + (
            "" if is_own else f", and {options.preset} is another preset"
        )
    elif options.start == "embedded":
        start = EMBEDDED
    elif options.start != "scratch":
        start = datasets.checkpoint(options.start)
        if not start.is_dir():
            raise UserError(f"there is no checkpoint called {options.start!r} ({start})")
    config = options.train
    if start is None:
        return None, config, f"random weights ({why})"
    if config.learning_rate == TrainConfig(minutes=1.0).learning_rate:
        config = replace(config, learning_rate=TUNING_RATE)
    return start, config, f"{start.name} ({why}), learning rate {config.learning_rate:g}"


def _read_start(out: Path, datasets: Datasets) -> Path | None:
    """Return the checkpoint that the run in `out` started from, None for random weights."""
    card = read_json(out / CARD, UserError)
    check(out / CARD, card, Card, UserError)
    before = card["data"].get("start")
    if before is None:
        return None
    name = str(before.get("name", ""))
    return EMBEDDED if name == EMBEDDED.name else datasets.checkpoint(name)


def count_positions(training_set: Path) -> int:
    """Return the train positions of a training set."""
    return Dataset.open(training_set).count("train")
