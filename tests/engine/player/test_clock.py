"""Time management: no move gets more than the clock has, and no long game is lost on time."""

import random

import chess
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.evaluation.evaluator import uniform
from engine.player.clock import Budget, Limits, MoveControl, MoveTimer, Timings, divide_clock
from engine.search import Search
from engine.search.chess_rules import position_and_history
from tests.engine.uci.uci_talk import FakeClock

LATENCY_SECONDS = 0.003
"""Time that a simulated move loses besides thinking."""
ROUND_SECONDS = 0.005
"""Duration of a simulated round; a move without time for a round is played at once."""


@settings(max_examples=50)
@given(
    left=st.floats(-1e6, 1e8),
    increment=st.floats(-10, 1e4),
    moves=st.none() | st.integers(-5, 10_000),
    movetime=st.none() | st.floats(-1e3, 1e7),
    overhead=st.floats(0, 10),
)
def test_no_move_gets_more_than_the_clock_has(
    left: float, increment: float, moves: int | None, movetime: float | None, overhead: float
) -> None:
    limits = Limits(left=left, increment=increment, moves_to_go=moves, movetime=movetime)
    budget = divide_clock(limits, overhead)
    assert budget.soft is not None
    assert budget.hard is not None
    assert 0.0 <= budget.soft <= budget.hard <= max(left, 0.0)
    assert left <= overhead or budget.hard <= left - overhead
    if movetime is not None:
        assert budget.hard <= max(movetime, 0.0)


def test_budgets_of_some_clocks() -> None:
    assert divide_clock(Limits(), 0.02) == Budget(None, None)
    for left in (0.0, -0.05, -1e9):
        assert divide_clock(Limits(left=left, increment=0.1), 0.02) == Budget(0.0, 0.0)
    assert divide_clock(Limits(movetime=1.0), 0.02).hard == pytest.approx(0.98)
    assert divide_clock(Limits(movetime=0.01), 0.02).hard == pytest.approx(0.005), "half at least"
    last = divide_clock(Limits(left=10.0, moves_to_go=1), 0.02)
    assert 7.0 < (last.soft or 0.0) < 10.0
    first = divide_clock(Limits(left=10.0, moves_to_go=40), 0.02)
    assert 0.0 < (first.soft or 0.0) < 0.3


@pytest.mark.parametrize(
    ("base", "increment", "moves_to_go"),
    [
        (60.0, 0.0, None),
        (10.0, 0.1, None),
        (1.0, 0.02, None),
        (0.2, 0.05, None),
        (60.0, 0.6, None),
        (60.0, 0.0, 40),
        (5.0, 0.0, 10),
        (1.0, 0.0, 1),
        (40.0, 0.5, 300),
    ],
)
@pytest.mark.parametrize("use", [0.6, 1.0, 1.3, "hard", "random"])
def test_a_long_game_uses_its_clock_and_never_exceeds_it(
    base: float, increment: float, moves_to_go: int | None, use: float | str
) -> None:
    """`use` is the share of the soft bound that moves take, the hard bound, or a random time."""
    rng, clock, total = random.Random(1), base, base
    for move in range(300):
        until_control = None if moves_to_go is None else moves_to_go - move % moves_to_go
        limits = Limits(left=clock, increment=increment, moves_to_go=until_control)
        budget = divide_clock(limits, 0.02)
        soft, hard = budget.soft or 0.0, budget.hard or 0.0
        if isinstance(use, float):
            seconds = min(soft * use, hard)
        else:
            seconds = hard if use == "hard" else rng.uniform(0.0, hard)
        clock -= LATENCY_SECONDS + (seconds if seconds > ROUND_SECONDS else 0.0)
        assert clock > 0.0, f"lost on time at move {move}"
        gained = increment + (base if until_control == 1 else 0.0)
        clock, total = clock + gained, total + gained
        if move == 59 and base >= 10.0 and isinstance(use, float) and moves_to_go != 300:
            assert clock < total * 2 / 3, "a player that hardly thinks is no use"


def start_timer(clock: FakeClock, hard: float) -> tuple[Timings, MoveTimer]:
    """Return the timer of a move that is requested now and due after `hard` seconds."""
    timings, search = Timings(clock), Search(uniform)
    search.start(0, *position_and_history(chess.Board()))
    control = MoveControl(clock.now)
    return timings, MoveTimer(
        timings, search, 0, Budget(hard, hard, True), control, choices=20, leaves=1
    )


def test_a_round_that_could_end_too_late_is_not_begun() -> None:
    clock = FakeClock()
    timings, is_due = start_timer(clock, 0.05)
    clock.now += 0.02
    assert not is_due()
    assert timings.longest_round == pytest.approx(0.02)
    clock.now += 0.02
    assert is_due(), "a third round of 20 ms would end at 60 ms"
    timings, is_due = start_timer(clock, 60.0)
    timings.longest_round = 1.0
    for _ in range(20):
        clock.now += 0.01
        assert not is_due()
    assert timings.longest_round == pytest.approx(0.9**20), "a slow round is forgotten slowly"


def test_the_time_of_a_slow_batch_is_kept_in_reserve() -> None:
    timings, limits = Timings(FakeClock()), Limits(left=2.0, increment=0.1)
    usual = timings.make_budget(limits, 0, 0.02)
    assert usual == divide_clock(limits, 0.02)
    timings.observe(8, 1.9)
    assert timings.make_budget(limits, 0, 0.02).hard == pytest.approx(2.0 - 0.02 - 1.9)
    timings.observe(8, 2.5)
    assert timings.make_budget(limits, 0, 0.02) == Budget(0.0, 0.0)
