"""Move features: their encoding, the squares and logits that they change, and their version."""

import json
from dataclasses import replace
from pathlib import Path

import chess
import numpy as np
import pytest
import torch

from engine.encoding.planes import LABELS, label_from_move, legal_mask
from engine.evaluation.move_features import MOVE_FEATURES, legal_move_features
from model.checkpoint import CARD_FILE, EncodingMismatchError, load
from model.data.playouts import playout_rows
from model.inference.evaluator import NetworkEvaluator
from model.network.decoder import MoveHead
from model.network.encoder import MoveFeatureStem, Moves, encode_features
from model.network.network import build
from model.network.preset import Preset
from tests.engine.evaluation.test_handwritten import planes_of
from tests.model.synthetic import ATTENTION, TINY, perturb
from tests.model.test_checkpoint import make

FEATURED = replace(TINY, name="tiny-featured", move_features_width=8)


def test_amounts_are_encoded_as_sizes_and_flags() -> None:
    one = {"takes": 50, "risks": 29, "leaves": 30, "threatens": 100, "threatens_next": 10}
    one |= {"leaves_next": 0, "stands": 31, "check": 2, "target": 63}
    other = dict.fromkeys(MOVE_FEATURES, 0) | {"risks": 5, "check": 1}
    features = torch.tensor(
        [[row[name] for name in MOVE_FEATURES] for row in (one, other)], dtype=torch.uint8
    )
    sizes, above_zero, minor_piece, flags = encode_features(features).split([7, 7, 7, 5], 1)
    torch.testing.assert_close(sizes[0], torch.tensor([1.0, 0.58, 0.6, 0.0, 2.0, 0.2, 0.62]))
    assert above_zero.tolist() == [[1, 1, 1, 0, 1, 1, 1], [0, 1, 0, 0, 0, 0, 0]]
    assert minor_piece.tolist() == [[1, 0, 1, 0, 1, 0, 1], [0, 0, 0, 0, 0, 0, 0]]
    # takes > risks, takes < risks, leaves < stands, check, mate
    assert flags.tolist() == [[1, 0, 1, 1, 1], [0, 1, 0, 1, 0]]


KING_ON_E1 = "7k/8/8/8/8/8/8/4K3 w - - 0 1"
KING_ON_H1 = "7k/8/8/8/8/8/r7/7K w - - 0 1"  # its only move, h1g1, goes from square 63 to 62


def encode_moves() -> Moves:
    """Return the five moves of KING_ON_E1 and the one of KING_ON_H1."""
    boards = [chess.Board(fen) for fen in (KING_ON_E1, KING_ON_H1)]
    columns = legal_move_features(np.stack([planes_of(board) for board in boards]))
    return Moves({name: torch.from_numpy(column) for name, column in columns.items()})


def test_the_stem_adds_features_at_both_squares_of_a_move() -> None:
    stem = MoveFeatureStem(FEATURED)
    with torch.no_grad():
        stem.move_features.weight.zero_()
        stem.move_features.bias[: TINY.width], stem.move_features.bias[TINY.width :] = 1.0, 3.0
        stem.kinds.weight.zero_()
        added = stem(torch.zeros(2, TINY.width, 8, 8), encode_moves())
    assert added.shape == (2, TINY.width, 8, 8)
    for channel in added[1]:
        assert channel.flatten().nonzero().flatten().tolist() == [62, 63]
        assert (channel[7, 7], channel[7, 6]) == (1.0, 3.0)
    assert added[0, 0, 7, 4] == 5.0, "five moves leave e1"
    assert added[0, 0].sum() == 5 * 4.0


def test_the_head_reads_both_squares_of_a_move() -> None:
    head = MoveHead(FEATURED)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.zero_()
        head.sources.weight[:, 0] = head.targets.weight[:, 1] = 1.0
        head.weight.layer.weight[:] = 1 / 8
        trunk = torch.zeros(2, TINY.width, 8, 8)
        trunk[1, 0, 7, 7], trunk[1, 1, 7, 6], trunk[0, 0, 7, 6] = 20.0, 3.0, 500.0
        logits = head(torch.zeros(2, LABELS), trunk, encode_moves())
    label = label_from_move(chess.Move.from_uci("h1g1"), chess.WHITE)
    assert logits[1].nonzero().flatten().tolist() == [label]
    assert logits[1, label] == 23.0
    assert not logits[0].any(), "the trunk is zero on the squares of the first board's moves"


def test_scores_are_corrected_by_the_mean_move_of_the_position() -> None:
    moves, compare = encode_moves(), MoveHead(FEATURED).compare
    hidden_MC = torch.randn((6, 8), generator=torch.Generator().manual_seed(1))
    scores_M = torch.randn(6, generator=torch.Generator().manual_seed(2))
    assert not compare(hidden_MC, scores_M, moves, 2).any(), "corrections are zero at first"
    with torch.no_grad():
        compare.weight.layer.weight.normal_(generator=torch.Generator().manual_seed(3))
        added = compare(hidden_MC, scores_M, moves, 2)
        for part in (slice(0, 5), slice(5, 6)):  # five moves of one board, one of the other
            mean_C = scores_M[part].softmax(0) @ hidden_MC[part]
            expected = compare.weight(
                torch.relu(compare.own(hidden_MC[part]) + compare.others(mean_C))
            )
            torch.testing.assert_close(added[part], expected[:, 0])


@pytest.mark.parametrize("row", [FEATURED, ATTENTION], ids=lambda row: row.name)
def test_rows_do_not_depend_on_the_batch_and_illegal_moves_get_no_score(
    row: Preset,
) -> None:
    rows, network = playout_rows(12, seed=3), build(row, seed=1)
    perturb(network, 0.3)
    evaluate = NetworkEvaluator(network, device="cpu", amp="off")
    together = evaluate(rows["planes"])
    for at in range(12):
        alone = evaluate(rows["planes"][at : at + 1])
        np.testing.assert_allclose(alone[0][0], together[0][at], atol=1e-4)
        np.testing.assert_allclose(alone[1][0], together[1][at], atol=1e-5)
    with torch.no_grad():
        network.move_head.weight.layer.bias += 2.0
    legal = legal_mask(rows["planes"])
    moved = evaluate(rows["planes"])[0] - together[0]
    np.testing.assert_allclose(moved[legal], 2.0, atol=1e-4)
    np.testing.assert_array_equal(moved[~legal], 0.0)


def test_a_checkpoint_with_other_move_features_is_refused(tmp_path: Path) -> None:
    make(tmp_path / "featured", FEATURED)
    make(tmp_path / "plain", TINY)
    for name in ("featured", "plain"):
        path = tmp_path / name / CARD_FILE
        card = json.loads(path.read_text())
        assert card["move_features_version"] == 1
        path.write_text(json.dumps(card | {"move_features_version": 2}))
    load(tmp_path / "plain")
    with pytest.raises(EncodingMismatchError, match="version 2 of the move features"):
        load(tmp_path / "featured")
