"""Human search: policies from the caller at the roots, corrected by the search's values."""

import chess
import numpy as np
import pytest

from engine.encoding.planes import LABELS, label_of, legal_mask
from engine.evaluation.evaluator import uniform
from engine.search import Search, SearchConfig
from engine.search.chess_rules import position_and_history
from engine.search.human import Correction, HumanRoot, correct_logits, move_values, search_roots
from tests.engine.search.stubs import MIDDLE, Hashed, board_of, by_uci, planes_of, wdl

MATE_IN_ONE = "6k1/5ppp/8/8/8/8/5PPP/R5K1 w - - 0 1"  # Ra8#
LINES = ("", "e2e4", "d2d4 d7d5", "g1f3 g8f6 f3g1 f6g8")


def root_of(board: chess.Board, salt: int = 0, value: float = 0.0) -> HumanRoot:
    """Give a board's root with a policy that looks random."""
    logits_BA, _ = Hashed(salt=salt)(planes_of(board)[None])
    return HumanRoot(*position_and_history(board), logits_BA[0], np.array(wdl(value), np.float32))


def test_the_policy_of_a_root_is_the_callers_and_the_evaluator_is_not_asked_about_it() -> None:
    board, asked = chess.Board(MIDDLE), []

    def evaluator(planes_BP: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        asked.extend(planes.tobytes() for planes in planes_BP)
        return uniform(planes_BP)

    search = Search(evaluator, SearchConfig(simulations=40, policy_temperature=1.0), games=3)
    roots = [root_of(board, salt=1), root_of(board, salt=2)]
    search.start(2, position_and_history(board)[0])
    found = search_roots(search, roots, 40)
    search.run(np.array([2]))
    for root, result in zip(roots, found, strict=True):
        wanted = np.exp(root.logits[result.labels].astype(np.float64))
        assert result.priors == pytest.approx(wanted / wanted.sum(), abs=1e-6)
    assert len(set(search.root(2).priors.tolist())) == 1, (
        "a slot without an answer has the evaluator's"
    )
    assert asked.count(planes_of(board).tobytes()) == 1
    search.play(0, int(found[0].labels[0]), int(found[0].promotions[0]))
    board.push(
        next(move for move in board.legal_moves if label_of(move, board.turn) == found[0].labels[0])
    )
    search.start(0, position_and_history(board)[0])
    search.run(np.array([0]))
    assert len(set(search.root(0).priors.tolist())) == 1, (
        "an answer belongs to the root that it was given for"
    )


def test_positions_of_different_ratings_in_one_batch_are_corrected_as_alone() -> None:
    roots = [root_of(board_of(chess.STARTING_FEN, line), salt) for salt, line in enumerate(LINES)]
    weight_N, sharpness_N = np.array([0.0, 1.0, 5.0, 20.0]), np.array([1.0, 1.0, 1.3, 0.8])
    config = SearchConfig(simulations=60)
    found = search_roots(Search(Hashed(salt=9), config, games=4), roots, 60)
    together_NA = correct_logits(roots, found, weight_N, sharpness_N)
    for row, root in enumerate(roots):
        alone = search_roots(Search(Hashed(salt=9), config, games=1), [root], 60)
        one = slice(row, row + 1)
        assert np.array_equal(
            correct_logits([root], alone, weight_N[one], sharpness_N[one])[0], together_NA[row]
        )
    assert np.array_equal(
        np.isfinite(together_NA), legal_mask(np.stack([planes_of_line(line) for line in LINES]))
    )
    legal = np.isfinite(together_NA[0])
    assert np.array_equal(together_NA[0, legal], roots[0].logits[legal].astype(np.float64)), (
        "weight 0: the policy"
    )


def planes_of_line(line: str) -> np.ndarray:
    return planes_of(board_of(chess.STARTING_FEN, line))


def test_values_are_the_means_of_visits_and_unvisited_moves_have_the_mean_of_all() -> None:
    root = root_of(chess.Board(MIDDLE))
    found = search_roots(Search(Hashed(salt=3), SearchConfig(simulations=12)), [root], 12)[0]
    values_A = move_values(root, found)
    seen = found.visits > 0
    assert 0 < seen.sum() < len(seen)
    mean = float((found.values[seen] * found.visits[seen]).sum() / found.visits.sum())
    assert values_A[found.labels[seen]] == pytest.approx(found.values[seen])
    assert values_A[found.labels[~seen]] == pytest.approx(mean)
    assert np.isneginf(np.delete(values_A, found.labels)).all()
    assert len(values_A) == LABELS


def test_a_mate_in_one_is_worth_one_and_moves_that_nobody_searched_what_the_network_says() -> None:
    board = chess.Board(MATE_IN_ONE)
    root = root_of(board, value=0.25)
    values_A = move_values(
        root, search_roots(Search(Hashed(), SearchConfig(simulations=8)), [root], 8)[0]
    )
    by_move = {move.uci(): values_A[label_of(move, board.turn)] for move in board.legal_moves}
    assert by_move.pop("a1a8") == 1.0
    assert list(by_move.values()) == pytest.approx([0.25] * len(by_move))


def test_a_promotion_has_the_value_of_its_best_piece() -> None:
    board = chess.Board("7k/4P2p/6pP/8/8/8/8/4K3 w - - 0 1")
    root = root_of(board)
    found = search_roots(Search(Hashed(salt=5), SearchConfig(simulations=400)), [root], 400)[0]
    values = by_uci(found, board.turn, "values")
    pieces = [values[f"e7e8{piece}"] for piece in "nbrq"]
    label = label_of(chess.Move.from_uci("e7e8q"), board.turn)
    assert move_values(root, found)[label] == pytest.approx(np.nanmax(pieces))
    assert len({round(value, 6) for value in pieces}) > 1


def test_a_correction_is_interpolated_between_its_ratings_and_constant_outside() -> None:
    found = Correction([1000, 2000], [0.0, 4.0], [1.0, 1.5])
    weight_N, sharpness_N = found.at(np.array([400, 1250, 2000, 3000, 0]))
    assert weight_N.tolist() == [0.0, 1.0, 4.0, 4.0, 2.0], "an unknown rating is taken for 1500"
    assert sharpness_N.tolist() == [1.0, 1.125, 1.5, 1.5, 1.25]
