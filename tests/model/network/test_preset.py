"""Presets: rows that build, and mistakes that are named."""

from dataclasses import MISSING, Field, fields, replace
from typing import Any

import pytest
import torch

from model.data.rows import blank_rows, load_rows
from model.network.blocks import ACTIVATIONS, GATES
from model.network.encoder import CONDITIONS
from model.network.network import BLOCKS, POLICY_HEADS, VALUE_HEADS, build, parameters
from model.network.preset import (
    Preset,
    PresetError,
    changed_fields,
    preset_from_row,
    preset_row,
    words,
)
from model.network.presets import UnknownPresetError, preset, presets
from tests.model.synthetic import TINY, TINY_SEED, batch


def test_the_words_of_a_preset_are_those_that_networks_are_built_from() -> None:
    tables = {
        "block": BLOCKS,
        "activation": ACTIVATIONS,
        "gate": GATES,
        "policy": POLICY_HEADS,
        "value": VALUE_HEADS,
        "condition": CONDITIONS,
    }
    assert {name: set(known) for name, known in words().items() if name in tables} == {
        name: set(table) for name, table in tables.items()
    }
    assert words().keys() - tables.keys() == {"value_neck", "init"}, (
        "these two are looked up nowhere"
    )


@pytest.mark.parametrize(
    "row", [TINY, TINY_SEED, presets()["fianchetto-xs"]], ids=lambda row: row.name
)
def test_network_gives_a_logit_for_each_label_and_its_kind_of_value(row: Preset) -> None:
    logits, wdl, left = build(row, seed=0)(blank_rows(row, 3, 0))
    assert logits.shape == (3, 4096)
    assert wdl.shape == (3, 3)
    assert logits.dtype == wdl.dtype == torch.float32
    assert left is None


@pytest.mark.parametrize("row", [TINY, TINY_SEED], ids=lambda row: row.name)
def test_outputs_are_not_rounded_to_half_width(row: Preset) -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.no_grad():
        columns = load_rows(row, batch(3), torch.device("cpu"))
        logits, wdl, _ = build(row, seed=0)(columns)
    for output in (logits, wdl.exp()):
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
    # By hand: stem, 6 blocks of two convolutions and a gate, and the heads; norms and biases come
    # on top.
    convolutions = 77 * 256 * 9 + 6 * 2 * 256 * 256 * 9 + 2 * 256 * 32
    linears = 6 * 2 * 256 * 16 + 2048 * 4096 + 2048 * 256 + 256
    assert 0 < parameters(network) - convolutions - linears < 20_000


@pytest.mark.parametrize(
    ("name", "blocks", "shapes"),
    [
        (
            "alphazero19",
            19,
            {
                "stem.0.weight": (256, 19, 3, 3),
                "policy.0.weight": (256, 256, 3, 3),
                "policy.3.layer.weight": (73, 256, 1, 1),
                "value.0.weight": (1, 256, 1, 1),
                "value.4.weight": (256, 64),
            },
        ),
        (
            "chess-policy",
            8,
            {
                "stem.0.weight": (64, 18, 3, 3),
                "policy.3.layer.weight": (73, 768, 1, 1),
                "value.0.weight": (32, 64, 1, 1),
                "value.4.weight": (32, 32),  # the board's mean
            },
        ),
        (
            "self-learning",
            6,
            {
                "stem.0.weight": (64, 18, 3, 3),
                "policy.planes.layer.weight": (65, 64, 1, 1),
                "value.4.weight": (128, 1024),
                "value.6.layer.weight": (1, 128),
            },
        ),
        (
            "bishop",
            6,
            {"value_stem.0.weight": (64, 18, 3, 3), "policy.4.layer.weight": (4096, 512)},
        ),
    ],
)
def test_systems_have_the_layers_that_are_written_of_them(
    name: str, blocks: int, shapes: dict[str, tuple[int, ...]]
) -> None:
    with torch.device("meta"):
        network = build(presets()[name], seed=0)
    state = {key: tuple(tensor.shape) for key, tensor in network.state_dict().items()}
    assert {key: state[key] for key in shapes} == shapes
    assert (
        sum(key.startswith("blocks.") and key.endswith("conv1.weight") for key in state) == blocks
    )


def test_two_towers_share_nothing() -> None:
    network = build(replace(TINY, towers=2), seed=0)
    logits, wdl, _ = network(load_rows(network.preset, batch(2), torch.device("cpu")))
    logits.sum().backward()
    touched = {
        name.split(".")[0]
        for name, parameter in network.named_parameters()
        if parameter.grad is not None
    }
    assert touched == {"stem", "blocks", "policy"}
    wdl[:, 0].sum().backward()
    assert network.value_stem[0].weight.grad is not None  # type: ignore[index,union-attr]


def test_kaiming_draws_by_fan_in() -> None:
    network = build(replace(TINY, width=64, init="kaiming"), seed=0)
    weight = network.blocks[0].conv1.weight  # type: ignore[union-attr]
    assert float(weight.detach().std()) == pytest.approx((2 / (64 * 9)) ** 0.5, rel=0.05)  # type: ignore[union-attr,operator]


def test_fianchettos_policy_flattens_type_times_64_plus_square() -> None:
    network = build(TINY, seed=0)
    head = network.policy[0].layer  # type: ignore[union-attr,index]
    with torch.no_grad():
        head.weight.zero_()  # type: ignore[union-attr,operator]
        head.bias.copy_(torch.arange(64.0))  # type: ignore[union-attr,operator]
    logits = network(blank_rows(TINY, 1, 0)).logits
    assert torch.equal(logits[0], torch.arange(64.0).repeat_interleave(64))


def test_the_same_seed_gives_the_same_weights_and_leaves_the_global_seed_alone() -> None:
    before = torch.get_rng_state()
    one, same, other = build(TINY, seed=1), build(TINY, seed=1), build(TINY, seed=2)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(one.stem[0].weight, same.stem[0].weight)  # type: ignore[arg-type]
    assert not torch.equal(one.stem[0].weight, other.stem[0].weight)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("fianceto-xs", "fianchetto-xs"),
        ("alphazero", "alphazero19"),
        ("chesmaro-12", "chessmarro-12"),
        ("", ""),
    ],
)
def test_unknown_preset_names_the_nearest(name: str, near: str) -> None:
    with pytest.raises(UnknownPresetError, match=f"did you mean {near}"):
        preset(name)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("width", 0, "width"),
        ("blocks", 10**9, "blocks"),
        ("activation", "sinus", "activation must be one of mish, relu, got 'sinus'"),
        ("policy", "__class__", "policy must be one of"),
        ("view", "marro99", "marro77"),
        ("squeeze", 0, "needs squeeze"),
        ("moves", "az4673", "did you mean 'az4672'"),
        ("moves", "fromto4096", "a planes policy cannot answer in fromto4096"),
        ("policy", "factored", "a factored policy cannot answer in marro4096"),
        ("policy", "linear", "needs policy_width"),
        ("block", "attention", "block must be one of post, pre, got 'attention'"),
        ("condition", "ratings", "needs condition_width"),
        ("condition", "weather", "condition must be one of"),
        ("towers", 3, "towers is 3"),
        ("value_neck", "giraffe", "value_neck must be one of"),
        ("init", "zeros", "init must be one of"),
        ("moves_left", -1, "moves_left is -1"),
    ],
)
def test_a_row_that_cannot_be_built_is_refused_by_field(
    field: str, value: object, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        replace(TINY, **{field: value})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "row",
    [
        None,
        [],
        {},
        {"name": "x"},
        preset_row(TINY) | {"width": "8"},
        preset_row(TINY) | {"blocks": True},
    ],
)
def test_rows_from_a_card_are_checked(row: object) -> None:
    with pytest.raises(PresetError):
        preset_from_row(row)


def test_changed_fields_are_named() -> None:
    row = preset_row(TINY)
    assert changed_fields(TINY, row) == []
    assert changed_fields(replace(TINY, width=9, towers=2), row) == ["width", "towers"]


@pytest.mark.parametrize("field", fields(Preset), ids=lambda field: field.name)
def test_a_card_may_lack_a_field_that_has_a_default(field: "Field[Any]") -> None:
    row = preset_row(TINY)
    del row[field.name]
    if field.default is MISSING:
        with pytest.raises(PresetError, match=f"missing or unknown: {field.name}"):
            preset_from_row(row)
    else:
        assert preset_from_row(row) == TINY


def test_a_row_survives_the_card() -> None:
    assert preset_from_row(preset_row(TINY_SEED)) == TINY_SEED
