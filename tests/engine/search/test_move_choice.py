"""Which move is played after a search: by visits, at random with a temperature, by the improved
policy."""

from collections import Counter

import chess
import numpy as np
import pytest

from engine.search import Search, SearchConfig
from tests.engine.search.stubs import (
    MIDDLE,
    Hashed,
    Laid,
    begin,
    board_of,
    by_uci,
    chosen,
    searched,
)
from tests.engine.search.test_puct import LAID, MOVES, PLAIN, ROOT


@pytest.mark.parametrize("temperature", [1.0, 0.5, 2.0])
def test_a_temperature_draws_by_visits(temperature: float):
    """The tree worked by hand has visits 1, 3, 2: shares go with visits ** (1 / temperature)."""
    games = 3000
    search = Search(LAID, SearchConfig(simulations=6, policy_temperature=1.0, **PLAIN), games=games)
    for slot in range(games):
        begin(search, slot, chess.Board(ROOT))
    search.run()
    labels, _ = search.choose(temperature=temperature)
    counts = Counter(labels.tolist())
    root = search.root(0)
    label_of = dict(zip(by_uci(root, chess.WHITE), root.labels.tolist(), strict=True))
    weights = np.array([1.0, 3.0, 2.0]) ** (1 / temperature)
    for uci, share in zip(MOVES, weights / weights.sum(), strict=True):
        assert counts[label_of[uci]] / games == pytest.approx(share, abs=0.03)


def test_each_slot_may_have_its_own_temperature():
    search = Search(LAID, SearchConfig(simulations=6, policy_temperature=1.0, **PLAIN), games=400)
    for slot in range(400):
        begin(search, slot, chess.Board(ROOT))
    search.run()
    temperatures = np.repeat([0.0, 1.0], 200)
    labels, _ = search.choose(temperature=temperatures)
    assert len(set(labels[:200].tolist())) == 1
    assert len(set(labels[200:].tolist())) == 3


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_move_that_is_proven_lost_is_not_chosen_where_the_others_are_unvisited(
    temperature: float,
):
    """Fool's mate: all simulations go to g2g4, so the only visits are those of a lost move."""
    board = board_of(chess.STARTING_FEN, "f2f3 e7e5")
    mate = board_of(board.fen(), "g2g4")
    table = Laid({board.fen(): (0.0, {"g2g4": 1.0}), mate.fen(): (0.0, {"d8h4": 1.0})})
    search, root = searched(board, table, simulations=2)
    assert by_uci(root, chess.WHITE, "proven")["g2g4"] == -1
    assert by_uci(root, chess.WHITE)["g2g4"] == root.visits.sum()
    assert chosen(search, 0, chess.WHITE, temperature=temperature) != "g2g4"


def test_gumbel_chooses_the_halving_s_winner():
    """Among the moves of most visits, the one of the best logit and completed value."""
    search, root = searched(MIDDLE, Hashed(), simulations=64, algorithm="gumbel", gumbel_scale=0.0)
    most = [uci for uci, visits in by_uci(root, chess.WHITE).items() if visits == root.visits.max()]
    improved = by_uci(root, chess.WHITE, "improved")
    assert chosen(search, 0, chess.WHITE) == max(most, key=improved.__getitem__)


def test_gumbel_at_a_temperature_draws_by_the_improved_policy():
    search, root = searched(ROOT, LAID, simulations=6, algorithm="gumbel", gumbel_scale=0.0)
    drawn = Counter(int(search.choose(temperature=1.0)[0][0]) for _ in range(3000))
    for label, share in zip(root.labels.tolist(), root.improved.tolist(), strict=True):
        assert drawn[label] / 3000 == pytest.approx(share, abs=0.03)


def test_nothing_searched_still_chooses_the_likeliest():
    search, root = searched(ROOT, Laid({ROOT: (0.0, {"a1b1": 0.6, "a1a2": 0.4})}), simulations=1)
    assert chosen(search, 0, chess.WHITE) == "a1b1"
    assert root.visits.sum() == 1


def test_lines_are_the_most_visited_way_down():
    search, root = searched(ROOT, LAID, simulations=6, **PLAIN)
    moves = list(by_uci(root, chess.WHITE))
    wanted = {"a1b1": 3, "a1b2": 2, "a1a2": 1}  # b1 g7 c2; b2 h7; a2
    for uci, length in wanted.items():
        assert len(search.line(0, moves.index(uci))) == length
    assert search.line(0) == search.line(0, moves.index("a1b1"))
