"""An evaluator that fails leaves the tree as it was, answers that are not finite are refused, and
bad calls change nothing."""

import chess
import numpy as np
import pytest

from engine.encoding.planes import label_of
from engine.search import Search, SearchConfig, SearchError
from engine.search.tree import WAITING
from tests.engine.search.stubs import (
    MIDDLE,
    Arrays,
    Hashed,
    begin,
    board_of,
    by_uci,
    chosen,
    planes_of,
    searched,
)
from tests.engine.search.test_search import FENS, check_books


class Failing:
    """Raises at call number `at`, counted from 0, and answers as `Hashed` otherwise."""

    def __init__(self, at: int) -> None:
        self.at, self.calls = at, 0
        self.answer = Hashed()

    def __call__(self, planes_BP: np.ndarray) -> Arrays:
        self.calls += 1
        if self.calls == self.at + 1:
            raise KeyError("out of memory")
        return self.answer(planes_BP)


def started(evaluator: object, games: int = 1, **options: object) -> Search:
    search = Search(evaluator, SearchConfig(**options), games=games, seed=2)  # type: ignore[arg-type]
    for slot in range(games):
        begin(search, slot, chess.Board(FENS[slot % len(FENS)]))
    return search


@pytest.mark.parametrize("at", [0, 1, 7])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"leaves": 8},
        {"leaves": 8, "nodes": 20},
        {"algorithm": "gumbel", "leaves": 4},
    ],
)
def test_a_search_goes_on_after_its_evaluator_raised(at: int, options: dict[str, object]):
    search = started(Failing(at), games=6, simulations=60, **options)
    with pytest.raises(KeyError):
        search.run()
    assert not (search._forest.nodes["count"] == WAITING).any()
    assert not search._forest.nodes["in_flight"].any()
    for slot in range(6):
        check_books(search, slot)
    before = [search.root(slot).simulations for slot in range(6)]
    search.run(simulations=40)
    for slot in range(6):
        check_books(search, slot)
        root = search.root(slot)
        assert root.mate != 0 or root.simulations == before[slot] + 40


@pytest.mark.parametrize("leaves", [1, 8])
def test_a_round_that_failed_leaves_no_trace(leaves: int):
    """The rounds after it give the tree of a search that never failed."""
    whole = started(Hashed(), simulations=200, leaves=leaves)
    failed = started(Failing(5), simulations=200, leaves=leaves)
    whole.run(stop=lambda: whole.batches == 5)
    with pytest.raises(KeyError):
        failed.run()
    assert failed.root().visits.tolist() == whole.root().visits.tolist()
    assert failed.root().values.tolist() == pytest.approx(whole.root().values.tolist(), nan_ok=True)
    for search in (whole, failed):
        search.run()
    assert failed.root().visits.tolist() == whole.root().visits.tolist()
    assert (failed.root().seldepth, failed.root().nodes) == (
        whole.root().seldepth,
        whole.root().nodes,
    )


@pytest.mark.parametrize("wrong", [np.nan, np.inf])
@pytest.mark.parametrize("where", ["logits", "win", "draw", "loss"])
def test_answers_that_are_not_finite_are_refused(wrong: float, where: str):
    calls = []

    def broken(planes_BP: np.ndarray) -> Arrays:
        logits_BA, wdl_B3 = Hashed()(planes_BP)
        calls.append(len(planes_BP))
        if len(calls) == 4:
            if where == "logits":
                logits_BA[-1] = np.where(np.isfinite(logits_BA[-1]), wrong, logits_BA[-1])
            else:
                wdl_B3[-1, ("win", "draw", "loss").index(where)] = wrong
        return logits_BA, wdl_B3

    search = Search(broken, SearchConfig(simulations=50, leaves=4))
    begin(search, 0, chess.Board(MIDDLE))
    with pytest.raises(SearchError, match="NaN or infinity"):
        search.run()
    check_books(search, 0)
    before = search.root().simulations
    search.run()
    assert search.root().simulations == before + 50


def test_a_logit_of_minus_infinity_is_a_prior_of_zero():
    def one_move(planes_BP: np.ndarray) -> Arrays:
        logits_BA = np.full((len(planes_BP), 4096), -np.inf, dtype=np.float32)
        logits_BA[:, 52] = 1.0  # a pawn of the e-file, one step
        return logits_BA, np.full((len(planes_BP), 3), 1 / 3, dtype=np.float32)

    _, root = searched(chess.STARTING_FEN, one_move, simulations=4)
    assert by_uci(root, chess.WHITE, "priors")["e2e3"] == 1.0
    assert root.priors.sum() == 1.0


MATE_IN_ONE = "6k1/5ppp/8/8/8/8/8/R3K3 w Q - 0 1"


def test_a_mate_in_one_that_is_not_allowed_leaves_the_evaluator_s_priors():
    """Without the mate the root is evaluated as any other; with it among the moves it is found as
    ever."""
    board = board_of(MATE_IN_ONE)
    allowed = ["a1a7", "e1d2", "e1f2"]
    _, root = searched(board, Hashed(), simulations=40, allowed=allowed)
    logits_BA, _ = Hashed()(planes_of(board)[None])
    labels = [label_of(chess.Move.from_uci(uci), chess.WHITE) for uci in allowed]
    weights = np.exp(logits_BA[0, labels].astype(float))
    expected = dict(zip(allowed, (weights / weights.sum()).tolist(), strict=True))
    assert by_uci(root, chess.WHITE, "priors") == pytest.approx(expected, abs=1e-6)
    assert (root.mate, root.visits.sum()) == (0, 40)
    search, root = searched(board, Hashed(), simulations=40, allowed=["a1a8", *allowed])
    assert (root.mate, chosen(search, 0, chess.WHITE), search.evaluations) == (1, "a1a8", 0)
