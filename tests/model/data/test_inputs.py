"""What networks are shown and asked, against the engine's own tables; what does not fit is
named."""

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

from engine.encoding.move_vocabularies import MoveIndexError, Vocabulary, index_of, vocabulary
from engine.encoding.planes import legal_mask, unpack
from engine.encoding.views import MissingColumnError, apply, apply_labels, counters, view
from model.data.inputs import legal_moves, move_to_device, network_input, training_columns
from model.data.outputs import flatten_policy, marro_logits
from model.data.planes import bytes_of
from model.data.playouts import playout_rows
from model.network.conditioning import CONDITIONS, STEPS, draw_of, encode_conditions, hide, width
from model.network.preset import Preset
from model.network.presets import presets
from model.training.config import TrainConfig
from model.training.targets import inputs_and_targets, step_columns
from pipeline.dataset.files.columns import BATCH_SENTINELS, COLUMNS, EARLIER_MOVES
from tests.model.synthetic import TINY, TINY_SEED, batch, bits

CPU = torch.device("cpu")
VIEWS = ("planes18", "planes19", "marro13+attacks", "marro77+last", "planes19+last+attacks")


@cache
def rows() -> dict[str, Any]:
    """Give rows of every kind of move."""
    return playout_rows(400, seed=3)


@pytest.mark.parametrize("name", ["marro77", "chessmarro77"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_planes_mask_and_labels_equal_the_engines(name: str, dtype: torch.dtype) -> None:
    some, shown, preset = batch(32), view(name), replace(TINY, view=name)
    columns = move_to_device(some, preset, CPU)
    pictures, legal, labels = (
        network_input(preset, columns, dtype),
        legal_moves(preset, columns),
        columns["target"],
    )
    assert isinstance(pictures, torch.Tensor)
    planes = apply(shown, some["planes"])
    black = some["planes"][:, 12] != 0
    assert pictures.dtype == dtype
    assert pictures.is_contiguous(memory_format=torch.channels_last)
    assert np.array_equal(pictures.float().numpy(), unpack(planes))
    assert np.array_equal(legal.numpy(), legal_mask(planes))
    assert np.array_equal(labels.numpy(), apply_labels(shown, black, some["label"]))
    assert legal[torch.arange(32), labels].all()


@pytest.mark.parametrize("name", VIEWS)
def test_every_view_is_drawn_as_the_engine_draws_it(name: str) -> None:
    shown, preset = view(name), replace(TINY, view=name)
    pictures = network_input(preset, move_to_device(rows(), preset, CPU), torch.float32)
    assert isinstance(pictures, torch.Tensor)
    assert pictures.shape[1] == shown.planes
    assert pictures.is_contiguous(memory_format=torch.channels_last)
    binary = unpack(apply(shown, rows()["planes"], rows()))
    assert np.array_equal(pictures[:, : binary.shape[1]].numpy(), binary)
    if shown.counters:
        constant = np.broadcast_to(
            counters(shown, rows())[:, :, None, None], (400, len(shown.counters), 8, 8)
        )
        assert np.allclose(pictures[:, binary.shape[1] :].numpy(), constant)


def indices_of_legal_moves(
    moves: Vocabulary, turned_B: np.ndarray, planes_BP: np.ndarray
) -> np.ndarray:
    """Return the mask of the indices of all legal moves, under-promotions included, move by
    move."""
    mask_BA = np.zeros((len(planes_BP), moves.size), dtype=bool)
    row_m, label_m = np.nonzero(legal_mask(planes_BP))
    seventh_m = planes_BP[row_m, 0] & np.uint64(0xFF00)
    promoting_m = (seventh_m >> (label_m % 64).astype(np.uint64) & np.uint64(1)) != 0
    for promotion in (0, 2, 3, 4, 5):
        which = promoting_m if promotion else np.ones_like(promoting_m)
        row_k, label_k = row_m[which], label_m[which]
        mask_BA[
            row_k, index_of(moves, turned_B[row_k], label_k, np.full_like(label_k, promotion))
        ] = True
    return mask_BA


@pytest.mark.parametrize("row", presets().values(), ids=lambda row: row.name)
def test_targets_and_masks_are_the_vocabularys_and_logits_come_back_as_labels(row: Preset) -> None:
    some, moves = rows(), vocabulary(row.moves)
    columns = move_to_device(some, row, CPU)
    turned = (some["planes"][:, 12] != 0) & view(row.view).absolute
    target = columns["target"]
    assert np.array_equal(target.numpy(), index_of(moves, turned, some["label"], some["promotion"]))
    mask = legal_moves(row, columns)
    assert np.array_equal(mask.numpy(), indices_of_legal_moves(moves, turned, some["planes"]))
    assert mask[torch.arange(400), target].all()
    back = marro_logits(
        row, torch.nn.functional.one_hot(target, moves.size) * 30.0, bytes_of(some["planes"])
    )
    assert np.array_equal(back.argmax(1).numpy(), some["label"])


def test_a_labels_logit_adds_up_its_promotions() -> None:
    row, some = presets()["alphazero19"], rows()
    under = np.flatnonzero(np.isin(some["promotion"], (2, 3, 4)))
    assert len(under) > 2
    bytes_ = bytes_of(some["planes"])
    logits = torch.randn(400, 4672, generator=torch.Generator().manual_seed(0))
    back = marro_logits(row, logits, bytes_)
    turned = some["planes"][:, 12] != 0
    for at in under.tolist():
        one = turned[at : at + 1]
        places = [
            index_of(vocabulary("az4672"), one, some["label"][at : at + 1], np.array([piece]))[0]
            for piece in (5, 2, 3, 4)
        ]
        total = sum(np.exp(float(logits[at, place])) for place in places)
        assert float(back[at, int(some["label"][at])]) == pytest.approx(np.log(total), abs=1e-5)
    plain = np.flatnonzero(some["promotion"] == 0)
    index = index_of(
        vocabulary("az4672"), turned[plain], some["label"][plain], np.zeros(len(plain), int)
    )
    assert torch.equal(back[plain, some["label"][plain].astype(int)], logits[plain, index])


def test_a_factored_pair_is_the_probability_of_from_times_to() -> None:
    random = torch.Generator().manual_seed(0)
    pair = torch.randn(2, 64, generator=random), torch.randn(2, 64, 64, generator=random)
    said = flatten_policy(pair).view(2, 64, 64).exp()
    assert torch.allclose(said.sum((1, 2)), torch.ones(2), atol=1e-5)
    assert torch.allclose(said.sum(2), pair[0].softmax(1), atol=1e-6)
    assert torch.allclose(said[1, 5] / said[1, 5].sum(), pair[1][1, 5].softmax(0), atol=1e-6)


def test_a_bit_lands_on_its_square() -> None:
    planes = np.zeros((1, 77), np.uint64)
    planes[0, 0] = bits(0, 15, 63)
    planes[0, 13 + 5] = bits(10)
    columns = move_to_device({"planes": planes}, TINY, CPU)
    pictures, legal = network_input(TINY, columns, torch.float32), legal_moves(TINY, columns)
    assert isinstance(pictures, torch.Tensor)
    assert pictures[0, 0].nonzero().tolist() == [[0, 0], [1, 7], [7, 7]]
    assert legal[0].nonzero().tolist() == [[5 * 64 + 10]]


def test_read_only_rows_are_taken() -> None:
    planes = batch(2)["planes"]
    planes.setflags(write=False)
    assert bytes_of(planes).shape == (2, 77, 8)


@pytest.mark.parametrize("row", presets().values(), ids=lambda row: row.name)
def test_shards_hold_every_column_that_a_preset_needs(row: Preset) -> None:
    assert set(training_columns(row)) <= {*COLUMNS, *EARLIER_MOVES}
    some = {name: rows()[name][:4] for name in training_columns(row)}
    config = TrainConfig(steps=1)
    columns = step_columns(config, row, some, CPU)
    inputs_and_targets(row, columns, torch.float32, draw=7)  # needs nothing that it does not name
    for name in training_columns(row):
        lacking = {key: column for key, column in some.items() if key != name}
        if name != "planes":
            with pytest.raises(MissingColumnError, match=f"needs the column '{name}'"):
                step_columns(config, row, lacking, CPU)


def test_a_label_outside_the_vocabulary_is_named() -> None:
    with pytest.raises(MoveIndexError, match="label 4096 with promotion 0 is no move of marro4096"):
        move_to_device(batch(2) | {"label": np.array([4096, 0])}, TINY_SEED, CPU)


def test_unknown_is_what_batches_hold_for_null() -> None:
    assert {name: steps.unknown for name, steps in STEPS.items()} == {
        name: BATCH_SENTINELS[name] for name in STEPS
    }


def test_conditions_are_shares_of_two_neighbouring_steps_or_unknown() -> None:
    columns = {
        "elo": torch.tensor([600, 675, 3000, 3300, 0]),
        "clock": torch.tensor([0, 1, 3, 65535, 2]),
    }
    got = encode_conditions(columns, ("elo", "clock"))
    assert got.shape == (5, width(("elo", "clock")))
    elo, clock = got[:, :18], got[:, 18:]
    assert elo[0].nonzero().tolist() == [[0]]
    assert elo[1, :2].tolist() == pytest.approx([0.5, 0.5])
    assert elo[2].nonzero().tolist() == elo[3].nonzero().tolist() == [[16]]
    assert elo[4].nonzero().tolist() == [[17]]
    assert [clock[row].argmax().item() for row in range(4)] == [0, 1, 2, 14]
    assert torch.allclose(got.sum(1), torch.full((5,), 2.0))


def test_training_hides_an_eighth_of_the_rows_and_others_in_another_draw() -> None:
    names = CONDITIONS["ratings_clock"]
    count = 4000
    columns = {name: torch.full((count,), 100) for name in names}
    columns |= {"game": torch.arange(count) // 40, "ply": torch.arange(count) % 40}
    once, again, other = (hide(columns, names, draw_of(3, step)) for step in (5, 5, 6))
    for name in names:
        assert torch.equal(once[name], again[name])
        lost, then = once[name] == STEPS[name].unknown, other[name] == STEPS[name].unknown
        assert float((lost & then).float().mean()) == pytest.approx(1 / 64, abs=0.01), (
            "draws know nothing of each other"
        )
        assert float((once[name] == STEPS[name].unknown).float().mean()) == pytest.approx(
            1 / 8, abs=0.03
        )
    assert torch.equal(once["elo"] == 0, once["opponent_elo"] == 0)
    assert not torch.equal(once["elo"] == 0, once["clock"] == 65535)


def test_training_hides_some_last_moves_and_nothing_else_does() -> None:
    """One row in eight, by a hash of game and ply: the same rows in the same draw, other rows than
    the ratings'."""
    some, row = (
        playout_rows(800, seed=5),
        replace(TINY_SEED, view="marro77+last", condition="ratings", condition_width=4),
    )
    some |= {"elo": np.full(800, 1500), "opponent_elo": np.full(800, 1500)}
    columns = move_to_device(some, row, CPU)
    whole, first, again = (
        network_input(row, columns, torch.float32, draw=draw) for draw in (None, 7, 7)
    )
    assert isinstance(whole, dict)
    assert isinstance(first, dict)
    assert isinstance(again, dict)
    assert torch.equal(first["planes"], again["planes"])
    shown, hidden = (it["planes"][:, 77:].sum((1, 2, 3)) for it in (whole, first))
    known = torch.from_numpy(some["last_move"].astype(np.int64)) < 4096
    assert known.sum() > 700
    assert torch.equal(shown, torch.where(known, 2.0, 0.0)), (
        "a square where it began and one where it ended"
    )
    lost = known & (hidden == 0)
    assert 0.08 < lost.float().mean() < 0.18
    assert torch.equal(first["planes"][~lost], whole["planes"][~lost])
    unrated = (first["conditions"] != whole["conditions"]).any(1)
    assert 0.08 < unrated.float().mean() < 0.18
    assert not torch.equal(unrated, lost)
