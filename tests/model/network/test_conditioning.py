"""Rows that are shown without ratings, clocks or last moves: other ones in each epoch, the same
ones after a kill."""

import itertools
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from engine.progress import silent
from model.data.playouts import playout_rows
from model.network import encoder
from model.network.encoder import CONDITIONS, STEPS, encode
from model.training import step as stepping
from model.training.config import TrainConfig
from model.training.loop import train
from tests.model.synthetic import TINY_SEED, Batch

pytestmark = pytest.mark.usefixtures("asked_before_steps_only")

ROWS, SIZE, EPOCHS = 96, 16, 16
PRESET = replace(TINY_SEED, view="marro77+last", condition="ratings_clock", condition_width=4)
CONFIG = TrainConfig(
    steps=EPOCHS * ROWS // SIZE, batch_size=SIZE, threads=1, amp="off", device="cpu"
)
UNKNOWN_ELO = STEPS["elo"].count
"""Place of "unknown" among the numbers that a rating is written as, which come first."""


@pytest.mark.parametrize("name", ["clock", "base", "increment"])
def test_the_documented_steps_of_seconds_are_those_that_are_encoded(name: str) -> None:
    """A number on a step is written as that step alone."""
    assert encoder.__doc__ is not None
    found = re.search(
        rf"^{name} +([\d, ]+?) \.\.\. (\d+) s \((\d+)\)", encoder.__doc__, re.MULTILINE
    )
    assert found is not None
    first, last, count = found.groups()
    assert int(count) == STEPS[name].count
    for place, seconds in [*enumerate(map(int, first.split(", "))), (int(count) - 1, int(last))]:
        (shares,) = encoder.encode_conditions({name: torch.tensor([seconds])}, (name,))
        assert shares[place] == pytest.approx(1.0, abs=1e-5), seconds


@pytest.fixture(scope="module")
def rows() -> Batch:
    """Rows of games, all of whose ratings, clocks and last moves are known."""
    found = dict(playout_rows(ROWS, seed=2))
    known = {"elo": 1500, "opponent_elo": 1500, "clock": 60, "last_move": 100}
    return found | {name: np.full_like(found[name], value) for name, value in known.items()}


def trained(
    rows: Batch, out: Path, monkeypatch: pytest.MonkeyPatch, steps: int = CONFIG.steps or 0
) -> Any:
    """Train, or go on, for so many steps; give the card, and by row what was hidden in its steps:
    rating, clock, move."""
    seen: list[tuple[int, bool, bool, bool]] = []
    real = stepping.hide
    numbers = {
        (int(game), int(ply)): at
        for at, (game, ply) in enumerate(zip(rows["game"], rows["ply"], strict=True))
    }

    def watched(*arguments: Any) -> Any:
        columns = real(*arguments)
        pictures, conditions, _ = encode(PRESET, columns)
        assert conditions is not None
        elo_B = conditions[:, UNKNOWN_ELO] == 1
        clock_B = conditions[:, 2 * (UNKNOWN_ELO + 1) + STEPS["clock"].count] == 1
        last_B = pictures[:, 77:].sum((1, 2, 3)) == 0
        for at, (game, ply) in enumerate(zip(columns["game"], columns["ply"], strict=True)):
            seen.append(
                (numbers[int(game), int(ply)], bool(elo_B[at]), bool(clock_B[at]), bool(last_B[at]))
            )
        return columns

    def batches(step: int) -> Iterator[Batch]:
        for at in itertools.count(step):
            first = at * SIZE % ROWS
            yield {name: column[first : first + SIZE] for name, column in rows.items()}

    asked = itertools.count()
    with monkeypatch.context() as patch:
        patch.setattr(stepping, "hide", watched)
        card = train(
            CONFIG,
            PRESET,
            batches,
            out,
            validation=None,
            data={},
            progress=silent,
            stop=lambda: next(asked) >= steps,
        )
    return card, seen


def test_each_epoch_hides_others_and_a_resumed_run_the_same(
    rows: Batch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert PRESET.condition in CONDITIONS
    card, whole = trained(rows, tmp_path / "whole", monkeypatch)
    hidden = np.zeros((3, EPOCHS, ROWS), bool)
    times = np.zeros(ROWS, int)
    for number, *lost in whole[-EPOCHS * ROWS :]:
        hidden[:, times[number], number] = lost
        times[number] += 1
    assert (times == EPOCHS).all()
    for kind in range(3):
        share = hidden[kind].mean()
        assert 0.09 < share < 0.16, "one row in eight"
        ever = hidden[kind].any(0).mean()
        assert ever == pytest.approx(1 - (7 / 8) ** EPOCHS, abs=0.1), (
            "chances are new in each epoch"
        )
        assert not hidden[kind].all(0).any()
    assert (hidden[0] & hidden[1]).mean() < 0.05, "ratings and clocks have draws of their own"
    assert (hidden[0] & hidden[2]).mean() < 0.05

    _, before = trained(rows, tmp_path / "parts", monkeypatch, steps=37)
    again, after = trained(rows, tmp_path / "parts", monkeypatch)
    assert before[-37 * SIZE :] + after[-(EPOCHS * ROWS - 37 * SIZE) :] == whole[-EPOCHS * ROWS :]
    assert again["files"]["weights"]["sha256"] == card["files"]["weights"]["sha256"]
