"""Human search: policies of the caller are corrected by a search."""

import chess
import numpy as np
import pytest

from engine.encoding.planes import LABELS, label_from_move
from engine.evaluation.evaluator import uniform
from engine.search import Root, Search, SearchConfig
from engine.search.chess_rules import position_and_history
from engine.search.human import Correction, HumanRoot, correct_logits, move_values, search_roots
from tests.engine.search.stubs import (
    MIDDLEGAME,
    HashEvaluator,
    board_of,
    by_uci,
    planes_of,
    wdl,
)


def root_of(board: chess.Board, salt: int = 0, value: float = 0.0) -> HumanRoot:
    """Return a board's root with a pseudo-random policy."""
    logits_BA, _ = HashEvaluator(salt=salt)(planes_of(board)[None])
    return HumanRoot(*position_and_history(board), logits_BA[0], np.array(wdl(value), np.float32))


def search_root(root: HumanRoot, simulations: int, salt: int) -> Root:
    search = Search(HashEvaluator(salt=salt), SearchConfig(simulations=simulations))
    return search_roots(search, [root], simulations)[0]


def test_an_answer_is_used_only_for_its_root() -> None:
    board, evaluated = chess.Board(MIDDLEGAME), []

    def evaluator(planes_BP: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        evaluated.extend(planes.tobytes() for planes in planes_BP)
        return uniform(planes_BP)

    search = Search(evaluator, SearchConfig(simulations=40, policy_temperature=1.0), games=2)
    root = root_of(board, salt=1)
    search.start(1, position_and_history(board)[0])
    found = search_roots(search, [root], 40)[0]
    wanted = np.exp(root.logits[found.labels].astype(np.float64))
    assert found.priors == pytest.approx(wanted / wanted.sum(), abs=1e-6)
    assert planes_of(board).tobytes() not in evaluated
    search.start(0, position_and_history(board)[0])
    search.run()
    for slot in (0, 1):
        assert len(set(search.root(slot).priors.tolist())) == 1, "the evaluator is uniform"


def test_a_correction_adds_the_values_to_the_policy() -> None:
    roots = [root_of(board_of(chess.STARTING_FEN, line)) for line in ("", "d2d4 d7d5")]
    found = search_roots(Search(HashEvaluator(salt=9), SearchConfig(), games=2), roots, 60)
    corrected_NA = correct_logits(roots, found, np.array([0.0, 5.0]), np.array([1.0, 1.3]))
    for root, result, logits_A, (weight, power) in zip(
        roots, found, corrected_NA, ((0.0, 1.0), (5.0, 1.3)), strict=True
    ):
        values_A = move_values(root, result)
        assert np.flatnonzero(np.isfinite(logits_A)).tolist() == np.unique(result.labels).tolist()
        expected = power * root.logits[result.labels] + weight * values_A[result.labels]
        assert logits_A[result.labels] == pytest.approx(expected)


def test_unvisited_moves_have_the_mean_value_of_all_visits() -> None:
    root = root_of(chess.Board(MIDDLEGAME))
    found = search_root(root, 12, salt=3)
    values_A = move_values(root, found)
    seen = found.visits > 0
    assert 0 < seen.sum() < len(seen)
    mean = float((found.values[seen] * found.visits[seen]).sum() / found.visits.sum())
    assert values_A[found.labels[seen]] == pytest.approx(found.values[seen])
    assert values_A[found.labels[~seen]] == pytest.approx(mean)
    assert np.isneginf(np.delete(values_A, found.labels)).all()
    assert len(values_A) == LABELS


def test_without_visits_moves_have_the_root_s_value_except_mates() -> None:
    board = chess.Board("6k1/5ppp/8/8/8/8/5PPP/R5K1 w - - 0 1")  # Ra8#
    root = root_of(board, value=0.25)
    values_A = move_values(root, search_root(root, 8, salt=0))
    by_move = {
        move.uci(): values_A[label_from_move(move, board.turn)] for move in board.legal_moves
    }
    assert by_move.pop("a1a8") == 1.0
    assert list(by_move.values()) == pytest.approx([0.25] * len(by_move))


def test_a_promotion_has_the_value_of_its_best_piece() -> None:
    board = chess.Board("7k/4P2p/6pP/8/8/8/8/4K3 w - - 0 1")
    root = root_of(board)
    found = search_root(root, 400, salt=5)
    values = by_uci(found, board.turn, "values")
    pieces = [values[f"e7e8{piece}"] for piece in "nbrq"]
    label = label_from_move(chess.Move.from_uci("e7e8q"), board.turn)
    assert move_values(root, found)[label] == pytest.approx(np.nanmax(pieces))
    assert len({round(value, 6) for value in pieces}) > 1


def test_a_correction_is_interpolated_between_ratings_and_constant_outside() -> None:
    correction = Correction([1000, 2000], [0.0, 4.0], [1.0, 1.5])
    weight_N, sharpness_N = correction.interpolate(np.array([400, 1250, 2000, 3000, 0]))
    assert weight_N.tolist() == [0.0, 1.0, 4.0, 4.0, 2.0], "an unknown rating counts as 1500"
    assert sharpness_N.tolist() == [1.0, 1.125, 1.5, 1.5, 1.25]
