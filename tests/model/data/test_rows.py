"""Network inputs against the engine's own tables; missing columns are named."""

from dataclasses import replace
from functools import cache
from itertools import combinations
from typing import Any

import numpy as np
import pytest
import torch

from engine.encoding.planes import unpack
from engine.encoding.views import MissingColumnError, apply_view, counters, view
from model.data.playouts import playout_rows
from model.data.rows import (
    hash_step,
    hidden_columns,
    hide_columns,
    load_rows,
    training_columns,
)
from model.network.encoder import (
    CONDITION_STEPS,
    CONDITIONS,
    count_condition_weights,
    encode,
    encode_conditions,
)
from model.network.network import build
from model.network.preset import Preset
from model.network.presets import presets
from model.training.config import TrainConfig
from model.training.targets import load_training_rows
from pipeline.dataset.files.columns import BATCH_SENTINELS, COLUMNS, EARLIER_MOVES
from tests.model.synthetic import TINY, perturb

CPU = torch.device("cpu")
VIEWS = (
    "marro77",
    "chessmarro77",
    "planes18",
    "planes19",
    "marro13+attacks",
    "marro77+last",
    "planes19+last8+attacks",
)


@cache
def rows() -> dict[str, Any]:
    """Return rows with every kind of move."""
    return playout_rows(400, seed=3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", VIEWS)
def test_planes_of_every_view_equal_the_engines(name: str, dtype: torch.dtype) -> None:
    this_view, preset = view(name), replace(TINY, view=name)
    with torch.autocast("cpu", dtype=dtype, enabled=dtype != torch.float32):
        planes = encode(preset, load_rows(preset, rows(), CPU)).planes
    assert planes.shape[1] == this_view.planes
    assert planes.dtype == dtype
    assert planes.is_contiguous(memory_format=torch.channels_last)
    binary = unpack(apply_view(this_view, rows()["planes"], rows()))
    assert np.array_equal(planes[:, : binary.shape[1]].float().numpy(), binary)
    if this_view.counters:
        expected = counters(this_view, rows())[:, :, None, None].repeat(8, 2).repeat(8, 3)
        found = planes[:, binary.shape[1] :].float().numpy()
        assert np.allclose(found, expected, atol=1e-2 if dtype == torch.bfloat16 else 1e-7)


@pytest.mark.parametrize("row", presets().values(), ids=lambda row: row.name)
def test_shards_have_every_column_that_a_preset_needs(row: Preset) -> None:
    assert set(training_columns(row)) <= {*COLUMNS, *EARLIER_MOVES}
    complete = {name: rows()[name][:4] for name in training_columns(row)}
    columns = load_training_rows(TrainConfig(steps=1), row, complete, CPU)
    encode(row, hide_columns(columns, hidden_columns(row), 7))
    for name in set(complete) - {"planes"}:
        incomplete = {key: column for key, column in complete.items() if key != name}
        with pytest.raises(MissingColumnError, match=f"needs the column '{name}'"):
            load_training_rows(TrainConfig(steps=1), row, incomplete, CPU)


def test_padding_moves_changes_no_prediction_and_no_gradient() -> None:
    preset = replace(TINY, view="marro13", move_features_width=8)
    batch = {name: column[:8] for name, column in rows().items()}
    network = build(preset, seed=1)
    perturb(network, 0.3)
    found = []
    for is_padded in (False, True):
        network.zero_grad()
        columns = load_rows(preset, batch, CPU, padded=is_padded)
        prediction = network.eval()(columns)
        (prediction.logits.sin().sum() + prediction.wdl.sum()).backward()
        gradients = [parameter.grad for parameter in network.parameters()]
        found.append((len(columns["moves"]), prediction.logits, *gradients))
    (exact, *plain), (padded, *same) = found
    assert exact % 32
    assert padded == -(-exact // 32) * 32
    for one, other in zip(plain, same, strict=True):
        assert torch.allclose(one, other, atol=1e-5, rtol=1e-5)


def test_unknown_values_equal_the_sentinels_of_batches() -> None:
    assert {name: steps.unknown for name, steps in CONDITION_STEPS.items()} == {
        name: BATCH_SENTINELS[name] for name in CONDITION_STEPS
    }


def test_conditions_interpolate_between_two_steps_or_are_unknown() -> None:
    columns = {
        "elo": torch.tensor([600, 675, 3000, 3300, 0]),
        "clock": torch.tensor([0, 1, 3, 65535, 2]),
    }
    got = encode_conditions(columns, ("elo", "clock"))
    assert got.shape == (5, count_condition_weights(("elo", "clock")))
    elo, clock = got[:, :18], got[:, 18:]
    assert elo[0].nonzero().tolist() == [[0]]
    assert elo[1, :2].tolist() == pytest.approx([0.5, 0.5])
    assert elo[2].nonzero().tolist() == elo[3].nonzero().tolist() == [[16]]
    assert elo[4].nonzero().tolist() == [[17]]
    assert [clock[row].argmax().item() for row in range(4)] == [0, 1, 2, 14]
    assert torch.allclose(got.sum(1), torch.full((5,), 2.0))


def test_ratings_clocks_and_last_moves_are_hidden_independently_in_an_eighth_of_the_rows() -> None:
    names, count = (*CONDITIONS["ratings_clock"], "last_move"), 4000
    columns = {name: torch.full((count,), 100) for name in names}
    columns |= {"game": torch.arange(count) // 40, "ply": torch.arange(count) % 40}
    step_5, step_6 = (hide_columns(columns, names, hash_step(3, step)) for step in (5, 6))
    again = hide_columns(columns, names, torch.tensor(hash_step(3, 5)))
    for name in names:
        assert torch.equal(step_5[name], again[name])
        at_5, at_6 = step_5[name] != 100, step_6[name] != 100
        assert float(at_5.float().mean()) == pytest.approx(1 / 8, abs=0.03)
        assert float((at_5 & at_6).float().mean()) == pytest.approx(1 / 64, abs=0.01)
    assert torch.equal(step_5["elo"] == 0, step_5["opponent_elo"] == 0)
    hidden = [step_5["elo"] == 0, step_5["clock"] == 65535, step_5["last_move"] == 65535]
    for first, second in combinations(hidden, 2):
        assert float((first & second).float().mean()) == pytest.approx(1 / 64, abs=0.01)
    assert set(hide_columns(columns, ("elo",), 1)) == set(columns)
    assert torch.equal(hide_columns(columns, ("elo",), 1)["clock"], columns["clock"])
