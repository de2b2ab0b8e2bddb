"""Presets: rows that build, and mistakes that are named."""

from dataclasses import replace

import pytest
import torch

from model.network import build, parameters
from model.presets import Preset, PresetError, UnknownPresetError, preset, preset_from_row, preset_row, presets
from tests.model.synthetic import TINY, TINY_SEED


@pytest.mark.parametrize("row", [TINY, TINY_SEED, presets()["fianchetto-xs"]], ids=lambda row: row.name)
def test_network_gives_a_logit_for_each_label_and_its_kind_of_value(row: Preset) -> None:
    logits, value = build(row, seed=0)(torch.zeros(3, 77, 8, 8))
    assert logits.shape == (3, 4096)
    assert value.shape == (3, 3 if row.value == "wdl" else 1)
    assert logits.dtype == value.dtype == torch.float32


@pytest.mark.parametrize("row", [TINY, TINY_SEED], ids=lambda row: row.name)
def test_outputs_are_not_rounded_to_half_width(row: Preset) -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.no_grad():
        outputs = build(row, seed=0)(torch.rand(3, 77, 8, 8))
    for output in outputs:
        assert output.dtype == torch.float32
        assert not torch.equal(output, output.bfloat16().float())


def test_chessmarro_is_the_seed_architecture() -> None:
    with torch.device("meta"):
        network = build(presets()["chessmarro"], seed=0)
    state = {name: tuple(tensor.shape) for name, tensor in network.state_dict().items()}
    assert state["stem.0.weight"] == (256, 77, 3, 3)
    assert sum(name.endswith("conv1.weight") for name in state) == 6
    assert state["policy.0.weight"] == (32, 256, 1, 1)
    assert state["policy.4.layer.weight"] == (4096, 2048)
    assert state["value.4.weight"] == (256, 2048)
    # By hand: stem, 6 blocks of two convolutions and a gate, and the heads; norms and biases come on top.
    convolutions = 77 * 256 * 9 + 6 * 2 * 256 * 256 * 9 + 2 * 256 * 32
    linears = 6 * 2 * 256 * 16 + 2048 * 4096 + 2048 * 256 + 256
    assert 0 < parameters(network) - convolutions - linears < 20_000


def test_fianchettos_policy_flattens_type_times_64_plus_square() -> None:
    network = build(TINY, seed=0)
    head = network.policy[0].layer  # type: ignore[union-attr,index]
    with torch.no_grad():
        head.weight.zero_()  # type: ignore[union-attr,operator]
        head.bias.copy_(torch.arange(64.0))  # type: ignore[union-attr,operator]
    logits, _ = network(torch.zeros(1, 77, 8, 8))
    assert torch.equal(logits[0], torch.arange(64.0).repeat_interleave(64))


def test_the_same_seed_gives_the_same_weights_and_leaves_the_global_seed_alone() -> None:
    before = torch.get_rng_state()
    one, same, other = build(TINY, seed=1), build(TINY, seed=1), build(TINY, seed=2)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(one.stem[0].weight, same.stem[0].weight)  # type: ignore[arg-type]
    assert not torch.equal(one.stem[0].weight, other.stem[0].weight)  # type: ignore[arg-type]


def test_unknown_preset_names_the_nearest() -> None:
    with pytest.raises(UnknownPresetError, match="did you mean fianchetto-xs"):
        preset("fianceto-xs")


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("width", 0, "width"),
        ("blocks", 10**9, "blocks"),
        ("activation", "sinus", "no activation is called 'sinus'"),
        ("policy", "__class__", "no policy"),
        ("view", "marro99", "marro77"),
        ("squeeze", 0, "needs squeeze"),
    ],
)
def test_a_row_that_cannot_be_built_is_refused_by_field(field: str, value: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(TINY, **{field: value})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "row", [None, [], {}, {"name": "x"}, preset_row(TINY) | {"width": "8"}, preset_row(TINY) | {"blocks": True}]
)
def test_rows_from_a_card_are_checked(row: object) -> None:
    with pytest.raises(PresetError):
        preset_from_row(row)


def test_a_row_survives_the_card() -> None:
    assert preset_from_row(preset_row(TINY_SEED)) == TINY_SEED
