"""The order of a prediction's logits agrees with the engine's vocabularies, move by move."""

from functools import cache
from typing import Any

import chess
import numpy as np
import pytest
import torch

from engine.encoding.move_vocabularies import MoveIndexError, find_indices, vocabulary
from engine.encoding.planes import legal_mask
from engine.encoding.views import view
from model.data.playouts import playout_rows
from model.data.rows import to_bytes
from model.network.decoder import (
    flatten_policy,
    index_labels,
    label_order,
    legal_labels,
    log_wdl,
    merge_promotions,
    order_by_label,
)
from model.network.preset import Preset
from model.network.presets import presets

EVERY = pytest.mark.parametrize("row", presets().values(), ids=lambda row: row.name)
UNDER = (chess.KNIGHT, chess.BISHOP, chess.ROOK)


@cache
def rows() -> dict[str, Any]:
    """Return rows with every kind of move."""
    return playout_rows(400, seed=3)


@cache
def legal_moves() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """List row, label and promotion of all legal moves, under-promotions included."""
    row_m, label_m = np.nonzero(legal_mask(rows()["planes"]))
    pawns_m = rows()["planes"][row_m, 0] & np.uint64(0xFF00)
    promoting_m = (pawns_m >> (label_m % 64).astype(np.uint64)) & np.uint64(1) != 0
    parts = [(row_m, label_m, np.zeros_like(label_m))]
    for piece in UNDER:
        count = promoting_m.sum()
        parts.append((row_m[promoting_m], label_m[promoting_m], np.full(count, piece)))
    row_m, label_m, piece_m = map(np.concatenate, zip(*parts, strict=True))
    assert len(row_m) > len(parts[0][0])
    return row_m, label_m, piece_m


@EVERY
def test_logits_legality_and_targets_use_the_presets_vocabulary(row: Preset) -> None:
    moves, planes = vocabulary(row.moves), rows()["planes"]
    is_turned = (planes[:, 12] != 0) & view(row.view).is_absolute
    logits = np.random.default_rng(0).normal(size=(400, moves.size)).astype(np.float32)
    ordered = order_by_label(row, torch.from_numpy(logits), to_bytes(planes)).numpy()
    row_m, label_m, piece_m = legal_moves()
    position_m = index_labels(row, label_m, piece_m)
    index_m = find_indices(moves, is_turned[row_m], label_m, piece_m)
    assert np.array_equal(ordered[row_m, position_m], logits[row_m, index_m])
    assert np.array_equal(position_m[piece_m == 0], label_m[piece_m == 0])
    assert np.array_equal(np.sort(ordered, 1), np.sort(logits, 1)), "no logit is lost"
    legal = np.zeros((400, moves.size), bool)
    legal[row_m, position_m] = True
    assert np.array_equal(legal_labels(to_bytes(planes), moves.size).numpy(), legal)


@EVERY
def test_the_logit_of_a_label_sums_its_promotions(row: Preset) -> None:
    planes, size = rows()["planes"], vocabulary(row.moves).size
    logits = np.random.default_rng(1).normal(size=(400, size)).astype(np.float32)
    merged = merge_promotions(torch.from_numpy(logits), to_bytes(planes)).numpy()
    assert merged.shape == (400, 4096)
    row_m, label_m, piece_m = legal_moves()
    expected = np.zeros((400, 4096))
    # a set, because without under-promotions all pieces have the same logit
    moves = set(zip(row_m, index_labels(row, label_m, piece_m), label_m, strict=True))
    for at, position, label in moves:
        expected[at, label] += np.exp(np.float64(logits[at, position]))
    legal = expected > 0
    assert np.allclose(merged[legal], np.log(expected[legal]), atol=1e-5)


@pytest.mark.parametrize("name", ["marro4096", "fromto4096", "factored", "az4672"])
def test_72_under_promotions_follow_the_4096_labels(name: str) -> None:
    order, moves = label_order(name), vocabulary(name)
    assert np.array_equal(np.sort(order), np.arange(moves.size))
    following = moves.promotions[order[4096 : 4096 + 72]]
    beyond_the_edge = 3 * 2  # captures from the a-file to the left and from the h-file to the right
    count = 72 - beyond_the_edge if moves.under_promotions else 0
    assert np.count_nonzero(following) == count
    with pytest.raises(MoveIndexError, match="label 4096 with promotion 0"):
        index_labels(presets()["chessmarro"], np.array([0, 4096]))


def test_a_factored_policy_multiplies_the_probabilities_of_both_squares() -> None:
    random = torch.Generator().manual_seed(0)
    pair = torch.randn(2, 64, generator=random), torch.randn(2, 64, 64, generator=random)
    policy = flatten_policy(pair).view(2, 64, 64).exp()
    assert torch.allclose(policy, pair[0].softmax(1)[:, :, None] * pair[1].softmax(2), atol=1e-6)


def test_every_value_head_gives_win_draw_loss() -> None:
    logits = torch.tensor([[1.0, 2.0, -1.0]])
    assert torch.allclose(log_wdl("wdl", logits).exp(), logits.softmax(1))
    number = torch.tensor([[0.0], [0.7], [-100.0], [100.0]], requires_grad=True)
    win, draw, loss = log_wdl("tanh", number).exp().unbind(1)
    assert torch.allclose(win - loss, number[:, 0].tanh(), atol=1e-6)
    assert torch.allclose(win + loss, torch.ones(4))
    assert not draw.any()
    (win - loss).sum().backward()
    assert number.grad is not None
    assert number.grad.isfinite().all(), "also where tanh is saturated"
    assert log_wdl("none", torch.zeros(2, 0)).exp().sum(1).tolist() == pytest.approx([1.0, 1.0])
