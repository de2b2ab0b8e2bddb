"""Presets: the parts of the networks that they build, and errors that name the field."""

from dataclasses import MISSING, fields, replace
from typing import Any, get_args, get_type_hints

import pytest
import torch

from model.data.rows import blank_rows, load_rows
from model.network.blocks import ACTIVATIONS, GATES
from model.network.encoder import CONDITIONS
from model.network.network import BLOCKS, POLICY_HEADS, VALUE_HEADS, build
from model.network.preset import (
    Preset,
    PresetError,
    changed_fields,
    preset_from_dict,
    preset_to_dict,
)
from model.network.presets import UnknownPresetError, preset, presets
from tests.model.synthetic import TINY, TINY_TANH, batch


def test_every_choice_of_a_preset_has_a_builder() -> None:
    tables = {
        "block": BLOCKS,
        "activation": ACTIVATIONS,
        "gate": GATES,
        "policy": POLICY_HEADS,
        "value": VALUE_HEADS,
        "condition": CONDITIONS,
    }
    types = get_type_hints(Preset)
    for name, table in tables.items():
        assert set(get_args(types[name])) == set(table), name


@pytest.mark.parametrize("row", [TINY, TINY_TANH], ids=lambda row: row.name)
def test_outputs_are_not_rounded_to_bf16(row: Preset) -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.no_grad():
        columns = load_rows(row, batch(3), torch.device("cpu"))
        logits, wdl, _ = build(row, seed=0)(columns)
    for output in (logits, wdl.exp()):
        assert output.dtype == torch.float32
        assert not torch.equal(output, output.bfloat16().float())


BLOCKS_OF = {"chessmarro": 6, "alphazero19": 19, "chess-policy": 8, "self-learning": 6, "bishop": 6}
LAYERS: list[tuple[str, str, tuple[int, ...]]] = [
    ("chessmarro", "stem.0.weight", (256, 77, 3, 3)),
    ("chessmarro", "policy.0.weight", (32, 256, 1, 1)),
    ("chessmarro", "policy.4.layer.weight", (4096, 2048)),
    ("chessmarro", "value.4.weight", (256, 2048)),
    ("alphazero19", "stem.0.weight", (256, 19, 3, 3)),
    ("alphazero19", "policy.0.weight", (256, 256, 3, 3)),
    ("alphazero19", "policy.3.layer.weight", (73, 256, 1, 1)),
    ("alphazero19", "value.0.weight", (1, 256, 1, 1)),
    ("alphazero19", "value.4.weight", (256, 64)),
    ("chess-policy", "stem.0.weight", (64, 18, 3, 3)),
    ("chess-policy", "policy.3.layer.weight", (73, 768, 1, 1)),
    ("chess-policy", "value.4.weight", (32, 32)),  # its input is the board's mean
    ("self-learning", "stem.0.weight", (64, 18, 3, 3)),
    ("self-learning", "policy.planes.layer.weight", (65, 64, 1, 1)),
    ("self-learning", "value.6.layer.weight", (1, 128)),
    ("bishop", "value_stem.0.weight", (64, 18, 3, 3)),
    ("bishop", "policy.4.layer.weight", (4096, 512)),
]
"""Shapes of layers, from the descriptions of the systems."""


@pytest.mark.parametrize("name", BLOCKS_OF)
def test_systems_have_the_layers_of_their_descriptions(name: str) -> None:
    with torch.device("meta"):
        network = build(presets()[name], seed=0)
    state = {key: tuple(tensor.shape) for key, tensor in network.state_dict().items()}
    for system, layer, shape in LAYERS:
        assert system != name or state[layer] == shape, layer
    blocks = [key for key in state if key.startswith("blocks.") and key.endswith("conv1.weight")]
    assert len(blocks) == BLOCKS_OF[name]


def test_two_towers_share_nothing() -> None:
    network = build(replace(TINY, towers=2), seed=0)
    logits, wdl, _ = network(load_rows(network.preset, batch(2), torch.device("cpu")))
    logits.sum().backward()
    parameters = network.named_parameters()
    with_gradient = {name.split(".")[0] for name, weight in parameters if weight.grad is not None}
    assert with_gradient == {"stem", "blocks", "policy"}
    wdl[:, 0].sum().backward()
    assert network.value_stem[0].weight.grad is not None  # type: ignore[index,union-attr]


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


def test_an_unknown_name_is_answered_with_the_nearest() -> None:
    for name, nearest in (("fianceto-xs", "fianchetto-xs"), ("", "")):
        with pytest.raises(UnknownPresetError, match=f"did you mean '{nearest}"):
            preset(name)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("width", 0, "width must be at least 1"),
        ("blocks", 10**9, "blocks must be at most 128"),
        ("activation", "sinus", "activation must be 'relu' or 'mish', got 'sinus'"),
        ("view", "marro99", "marro77"),
        ("squeeze", 0, "needs squeeze"),
        ("moves", "az4673", "did you mean 'az4672'"),
        ("moves", "fromto4096", "a planes policy cannot use the vocabulary fromto4096"),
        ("policy", "linear", "needs policy_width"),
        ("condition", "ratings", "needs condition_width"),
        ("block", "attention", "attention needs heads and feed_forward"),
        ("towers", 3, "towers must be at most 2"),
        ("width", "8", "width must be a valid integer"),
        ("blocks", True, "blocks must be a valid integer"),
    ],
)
def test_invalid_presets_are_refused_by_field(field: str, value: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(TINY, **{field: value})  # type: ignore[arg-type]


ATTENTION_FIELDS = {"block": "attention", "heads": 4, "feed_forward": 8, "gate": "none"}
FEATURED_FIELDS = {"move_features_width": 8, "policy_width": 2}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (ATTENTION_FIELDS | {"heads": 3}, "heads must divide"),
        (ATTENTION_FIELDS | {"gate": "scale"}, "no gate"),
        (FEATURED_FIELDS | {"view": "chessmarro77"}, "features need the vocabulary marro4096"),
        (FEATURED_FIELDS | {"moves": "fromto4096", "policy": "linear"}, "need the vocabulary"),
    ],
)
def test_fields_that_do_not_fit_together_are_refused(changes: Any, message: str) -> None:
    with pytest.raises(PresetError, match=message):
        replace(TINY, **changes)


@pytest.mark.parametrize(
    "values", [None, [], {}, {"name": "x"}, preset_to_dict(TINY) | {"self": 1}]
)
def test_values_from_a_card_are_checked(values: object) -> None:
    with pytest.raises(PresetError):
        preset_from_dict(values)


def test_changed_fields_are_named() -> None:
    values = preset_to_dict(TINY)
    assert changed_fields(TINY, values) == []
    assert changed_fields(replace(TINY, width=9, towers=2), values) == ["width", "towers"]


def test_fields_with_a_default_may_be_missing_from_a_card() -> None:
    for field in fields(Preset):
        values = preset_to_dict(TINY)
        del values[field.name]
        if field.default is MISSING:
            with pytest.raises(PresetError, match=field.name):
                preset_from_dict(values)
        else:
            assert preset_from_dict(values) == TINY
