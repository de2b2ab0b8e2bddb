"""The uniform evaluator, and the shape every evaluator has."""

import chess
import numpy as np
import pytest

from engine.board.movegen import legal_planes
from engine.board.position import from_board
from engine.encoding.planes import PLANES, legal_mask
from engine.evaluation import evaluator as evaluators
from engine.evaluation import handwritten


def planes_of(*fens: str) -> np.ndarray:
    planes_BP = np.zeros((len(fens), PLANES), dtype=np.uint64)
    for row, fen in enumerate(fens):
        legal_planes(from_board(chess.Board(fen)), planes_BP[row])
    return planes_BP


FENS = (
    chess.STARTING_FEN,
    "r3k2r/p1ppqpb1/bn2pnp1/3PN3/1p2P3/2N2Q1p/PPPBBPPP/R3K2R b KQkq - 0 1",
    "8/P7/8/8/8/8/6k1/K7 w - - 0 1",
)


@pytest.mark.parametrize("evaluator", [evaluators.uniform, handwritten.evaluate])
def test_logits_are_finite_on_legal_labels_and_wdl_is_a_distribution(
    evaluator: evaluators.Evaluator,
) -> None:
    planes_BP = planes_of(*FENS)
    logits_BA, wdl_B3 = evaluator(planes_BP)
    assert logits_BA.dtype == wdl_B3.dtype == np.float32
    assert logits_BA.shape == (3, 4096)
    assert wdl_B3.shape == (3, 3)
    assert np.isfinite(logits_BA[legal_mask(planes_BP)]).all()
    assert (wdl_B3 >= 0).all()
    np.testing.assert_allclose(wdl_B3.sum(axis=1), 1.0, atol=1e-6)


def test_uniform_prefers_nothing() -> None:
    planes_BP = planes_of(*FENS)
    logits_BA, wdl_B3 = evaluators.uniform(planes_BP)
    assert set(np.unique(logits_BA[legal_mask(planes_BP)])) == {0.0}
    np.testing.assert_allclose(wdl_B3, 1 / 3)
    for shared in (logits_BA, wdl_B3):
        with pytest.raises(ValueError, match="read-only"):
            shared[0, 0] = 1


def test_no_rows_give_no_rows() -> None:
    for evaluator in (evaluators.uniform, handwritten.evaluate):
        logits_BA, wdl_B3 = evaluator(np.zeros((0, PLANES), dtype=np.uint64))
        assert logits_BA.shape == (0, 4096)
        assert wdl_B3.shape == (0, 3)
