"""Compare whole trees with those of the slow search in reference.py, for all settings."""

from dataclasses import replace
from typing import Any

import chess
import numpy as np
import pytest

from engine.encoding.planes import label_from_move
from engine.search import Search, SearchConfig
from engine.search.chess_rules import position_and_history
from engine.search.human import HumanRoot, human_config, search_roots
from engine.search.results import get_edges
from engine.search.tree import Forest
from tests.engine.search import reference
from tests.engine.search.stubs import (
    MIDDLEGAME,
    HashEvaluator,
    board_of,
    by_uci,
    list_ucis,
    planes_of,
    start_board,
)

OPENINGS = [
    board_of(chess.STARTING_FEN),
    board_of(MIDDLEGAME),
    board_of("r3k2r/pppq1ppp/2npbn2/2b1p3/2B1P3/2NPBN2/PPPQ1PPP/R3K2R b KQkq - 4 8"),
    board_of("8/8/4k3/3p4/3P4/4K3/8/8 w - - 0 1", "e3d3 e6d6 d3e3 d6e6"),  # close to repetitions
    board_of("8/8/4k3/3p4/3P4/4K3/8/8 w - - 95 90"),  # close to fifty moves
]
GUMBEL = {"algorithm": "gumbel", "gumbel_scale": 0.0}
SETTINGS: dict[str, dict[str, Any]] = {
    "default": {},
    "narrow": {"c_puct": 0.8, "c_base": 20.0, "c_factor": 1.5, "c_stdev": 0, "fpu_reduction": 0},
    "wide": {"c_puct": 3.0, "c_factor": 0.0, "c_stdev": 1.0, "fpu_reduction": 1.0},
    "logarithmic": {"c_base": 1.0, "c_factor": 3.0, "policy_temperature": 1.7},
    "leaves": {"leaves": 8},
    "three leaves": {"leaves": 3, "fpu_reduction": 1.2, "c_stdev": 0.0},
    "top-k": {"top_k": 4},
    "tail": {"tail_mass": 0.2, "c_puct": 6.0},
    "widening": {"widening_factor": 0.7, "leaves": 2, "c_puct": 6.0},
    "repetition": {"repetition_penalty": 0.3},
    "early stop": {"early_stop": True, "c_puct": 0.5},
    "dominance": {"dominance": 0.4, "c_puct": 0.5, "leaves": 2},
    "branching": {"branching_exponent": 0.7},
    "endgame": {"endgame_factor": 0.4, "branching_exponent": 0.2},
    "all": {
        **{"widening_factor": 1.5, "top_k": 9, "tail_mass": 0.05, "repetition_penalty": 0.1},
        **{"early_stop": True, "dominance": 0.6, "branching_exponent": 0.5, "leaves": 2},
    },
    "gumbel": GUMBEL,
    "gumbel of four": {**GUMBEL, "max_considered_actions": 4, "leaves": 8},
    "gumbel of one": {**GUMBEL, "max_considered_actions": 1, "repetition_penalty": 0.3},
    "gumbel by score": {**GUMBEL, "max_considered_actions": 2, "rescale_values": False},
    "gumbel's budget": {**GUMBEL, "branching_exponent": 0.7, "endgame_factor": 0.5},
}


def assert_same_tree(forest: Forest, slot: int, number: int, node: reference.Node) -> int:
    """Compare visits, values and priors of all edges below a node; return the number of nodes."""
    edges = get_edges(forest, slot, number)
    labels = [label_from_move(move, node.board.turn) for move in node.moves]
    edge_of = {label: index for index, label in enumerate(edges["label"].tolist())}
    order = [edge_of[label] for label in labels]
    assert edges["visits"][order].tolist() == node.finished.tolist(), node.board.fen()
    assert not edges["in_flight"].any()
    sums = [node.children[i].value_sum if i in node.children else 0 for i in range(len(labels))]
    np.testing.assert_allclose(edges["value_sum"][order], np.negative(sums), atol=1e-5)
    np.testing.assert_allclose(edges["prior"][order], node.priors, atol=1e-6)
    positions = 1
    for index, child in node.children.items():
        if not child.over and child.visits:
            below = int(edges["child"][order[index]])
            positions += assert_same_tree(forest, slot, below, child)
    return positions


CASES = [(name, number % len(OPENINGS)) for number, name in enumerate(SETTINGS)]
CASES += [("default", 2), ("all", 1), ("gumbel", 2)]
CASES += [(name, 3) for name, options in SETTINGS.items() if "repetition_penalty" in options]
# a single root move proves the draw by fifty moves, but the reference has no proofs
PROVEN = {("gumbel of one", 4)}
SLOW_CASES = {(name, (number + 2) % len(OPENINGS)) for number, name in enumerate(SETTINGS)}
SLOW_CASES -= {*CASES, *PROVEN}
CASES += [pytest.param(*case, marks=pytest.mark.slow) for case in sorted(SLOW_CASES)]


@pytest.mark.parametrize(("name", "opening"), CASES)
def test_trees_are_those_of_the_slow_search(name: str, opening: int) -> None:
    config = SearchConfig(**{"simulations": 120, "policy_temperature": 1.0} | SETTINGS[name])
    board, evaluator = OPENINGS[opening], HashEvaluator(salt=opening)
    search = Search(evaluator, config)
    start_board(search, 0, board)
    search.run()
    node = reference.search(board, evaluator, config)
    positions = assert_same_tree(search._forest, 0, 0, node)
    assert positions > (10 if opening in (3, 4) else 20)
    root = search.root()
    assert root.value == pytest.approx(node.value_sum / node.visits, abs=1e-5)
    shares = node.finished / node.finished.sum()
    if config.algorithm == "gumbel":
        shares = reference.improve_policy(node, config)
    expected = dict(zip([move.uci() for move in node.moves], shares.tolist(), strict=True))
    assert by_uci(root, board.turn, "improved") == pytest.approx(expected, abs=1e-5)


def test_every_setting_changes_the_tree() -> None:
    trees = set()
    for name, options in SETTINGS.items():
        search = Search(HashEvaluator(), SearchConfig(**{"simulations": 120} | options))
        start_board(search, 0, OPENINGS[3] if "repetition" in name else OPENINGS[1])
        search.run()
        trees.add(str(search.root().visits.tolist()))
    assert len(trees) == len(SETTINGS)


def test_human_search_uses_the_caller_s_policy_at_roots_like_the_slow_search() -> None:
    evaluator, root_evaluator = HashEvaluator(salt=5), HashEvaluator(salt=9)
    search = Search(evaluator, human_config(64), games=len(OPENINGS))
    answers = [root_evaluator(planes_of(board)[None]) for board in OPENINGS]
    roots = [
        HumanRoot(*position_and_history(board), logits[0], wdl[0])
        for board, (logits, wdl) in zip(OPENINGS, answers, strict=True)
    ]
    search_roots(search, roots, 60)
    config = replace(human_config(64), simulations=60)
    for slot, (board, answer) in enumerate(zip(OPENINGS, answers, strict=True)):
        node = reference.search(board, evaluator, config, answer)
        assert assert_same_tree(search._forest, slot, 0, node) > 8
        assert set(list_ucis(search.root(slot), board.turn)) == {move.uci() for move in node.moves}
