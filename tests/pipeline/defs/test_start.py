"""Where a training starts: the embedded network for few games of its own preset."""

import json
import shutil
from pathlib import Path

import pytest

from engine.errors import UserError
from model.training.config import TrainConfig
from pipeline.defs import start
from pipeline.defs.launchpad.options import CheckpointOptions
from pipeline.defs.resources import Datasets
from pipeline.samples.shipped import EMBEDDED

OWN = TrainConfig(minutes=5.0, learning_rate=0.002)


@pytest.mark.parametrize(
    ("positions", "options", "begins", "rate"),
    [
        (150_000, CheckpointOptions(), EMBEDDED, 0.0005),
        (150_000, CheckpointOptions(train=OWN), EMBEDDED, 0.002),
        (15_000_000, CheckpointOptions(), None, 0.005),
        (150_000, CheckpointOptions(preset="fianchetto-xs"), None, 0.005),
        (150_000, CheckpointOptions(start="scratch"), None, 0.005),
        (15_000_000, CheckpointOptions(start="embedded"), EMBEDDED, 0.0005),
    ],
)
def test_few_games_start_from_the_embedded_network(
    positions: int,
    options: CheckpointOptions,
    begins: Path | None,
    rate: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(start, "count_positions", lambda training_set: positions)
    found, config, why = start.choose_start(options, Path("set"), Path("new"), Datasets())
    assert (found, config.learning_rate) == (begins, rate)
    assert (begins.name if begins else "random") in why


def test_a_start_that_is_not_there_is_named(root: Path) -> None:
    with pytest.raises(UserError, match="no checkpoint called 'typo'"):
        start.choose_start(CheckpointOptions(start="typo"), root, root, Datasets())
    (root / "checkpoints" / "mine").mkdir(parents=True)
    chosen, *_ = start.choose_start(CheckpointOptions(start="mine"), root, root, Datasets())
    assert chosen == root / "checkpoints" / "mine"


@pytest.mark.parametrize("began", [None, "embedded", "mine"])
def test_a_run_that_continues_keeps_its_start(root: Path, began: str | None) -> None:
    out = root / "checkpoints" / "run"
    shutil.copytree(EMBEDDED, out)
    card = json.loads((out / "checkpoint.json").read_text())
    card["data"] = {} if began is None else {"start": {"name": began, "data": {}}}
    (out / "checkpoint.json").write_text(json.dumps(card))
    begins = {None: None, "embedded": EMBEDDED, "mine": root / "checkpoints" / "mine"}[began]
    found, *_ = start.choose_start(CheckpointOptions(), root, out, Datasets())
    assert found == begins
    (out / "checkpoint.json").write_text("[]")
    with pytest.raises(UserError, match="checkpoint"):
        start.choose_start(CheckpointOptions(), root, out, Datasets())
