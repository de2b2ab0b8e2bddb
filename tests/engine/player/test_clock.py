"""Time management: whatever the clock, shares are never negative, never more than is there, and
last a long game."""

import random

import chess
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.evaluation.evaluator import uniform
from engine.player.clock import MOVES_TO_GO, Budget, Control, Limits, MoveTimer, Pace, divide_clock
from engine.search import Search
from engine.search.chess_rules import position_and_history
from tests.engine.uci.uci_talk import FakeClock

LATENCY = 0.003
"""Seconds that a simulated move costs beside the thinking."""
ROUND = 0.005
"""Seconds of a simulated round; a move that has no time for one is played at once."""


@given(
    left=st.floats(-1e6, 1e8),
    increment=st.floats(-10, 1e4),
    moves=st.none() | st.integers(-5, 10_000),
    movetime=st.none() | st.floats(-1e3, 1e7),
    overhead=st.floats(0, 10),
)
def test_no_move_gets_more_than_the_clock_holds(
    left: float, increment: float, moves: int | None, movetime: float | None, overhead: float
) -> None:
    limits = Limits(left=left, increment=increment, moves_to_go=moves, movetime=movetime)
    given = divide_clock(limits, overhead)
    assert given.soft is not None
    assert given.hard is not None
    assert 0.0 <= given.soft <= given.hard <= max(left, 0.0)
    assert left <= overhead or given.hard <= left - overhead
    if movetime is not None:
        assert given.hard <= max(movetime, 0.0)


def test_without_a_clock_there_is_no_bound() -> None:
    assert divide_clock(Limits(), 0.02) == Budget(None, None)


@pytest.mark.parametrize("left", [0.0, -0.05, -1e9])
def test_a_clock_that_has_run_out_leaves_no_time(left: float) -> None:
    assert divide_clock(Limits(left=left, increment=0.1), 0.02) == Budget(0.0, 0.0)


def test_move_time_is_used_but_for_the_overhead_and_never_less_than_its_half() -> None:
    assert divide_clock(Limits(movetime=1.0), 0.02).hard == pytest.approx(0.98)
    assert divide_clock(Limits(movetime=0.01), 0.02).hard == pytest.approx(0.005)


def test_the_last_move_before_a_time_control_may_use_most_of_the_clock() -> None:
    last = divide_clock(Limits(left=10.0, moves_to_go=1), 0.02)
    assert last.soft is not None
    assert 7.0 < last.soft < 10.0
    first = divide_clock(Limits(left=10.0, moves_to_go=40), 0.02)
    assert first.soft is not None
    assert first.soft < 0.3


def test_more_on_the_clock_is_more_for_the_move() -> None:
    shares = [
        divide_clock(Limits(left=left, increment=0.1), 0.02).soft or 0.0
        for left in (0.1, 0.5, 2.0, 10.0, 60.0, 600.0)
    ]
    assert shares == sorted(shares)
    assert shares[0] < shares[-1]


@pytest.mark.parametrize(
    ("base", "increment", "moves_to_go"),
    [
        (60.0, 0.0, None),
        (180.0, 2.0, None),
        (10.0, 0.1, None),
        (1.0, 0.02, None),
        (0.2, 0.05, None),
        (300.0, 3.0, None),
        (60.0, 0.0, 40),
        (5.0, 0.0, 10),
        (1.0, 0.0, 1),
        (40.0, 0.5, 300),
    ],
)
@pytest.mark.parametrize("temper", ["soft", "hard", "by lot"])
def test_a_game_of_300_moves_never_oversteps_the_clock(
    base: float, increment: float, moves_to_go: int | None, temper: str
) -> None:
    lots = random.Random(1)
    clock = base
    for move in range(300):
        until_control = None if moves_to_go is None else moves_to_go - move % moves_to_go
        given = divide_clock(
            Limits(left=clock, increment=increment, moves_to_go=until_control), 0.02
        )
        assert given.soft is not None
        assert given.hard is not None
        share = {"soft": given.soft, "hard": given.hard, "by lot": lots.uniform(0.0, given.hard)}[
            temper
        ]
        clock -= LATENCY + (share if share > ROUND else 0.0)
        assert clock > 0.0, f"flag at move {move}"
        clock += increment
        if until_control == 1:
            clock += base


def test_a_game_at_soft_bounds_uses_its_clock() -> None:
    """A player that never loses on time by never thinking would pass the test above."""
    clock = 60.0
    for _ in range(MOVES_TO_GO):
        clock -= divide_clock(Limits(left=clock), 0.02).soft or 0.0
    assert clock < 30.0


@pytest.mark.parametrize(
    ("base", "increment", "control"), [(10.0, 0.1, None), (60.0, 0.6, None), (60.0, 0.0, 40)]
)
@pytest.mark.parametrize("taken", [0.6, 1.0, 1.3])
def test_sixty_moves_use_between_a_third_and_all_of_the_clock(
    base: float, increment: float, control: int | None, taken: float
) -> None:
    """Moves end before their soft bound where nothing can change any more, and behind it where
    opinions differ."""
    clock = given = base
    for move in range(60):
        until_control = None if control is None else control - move % control
        share = divide_clock(
            Limits(left=clock, increment=increment, moves_to_go=until_control), 0.02
        )
        assert share.soft is not None
        assert share.hard is not None
        clock -= min(taken * share.soft, share.hard) + LATENCY
        assert clock > 0.0, f"flag at move {move}"
        gained = increment + (base if until_control == 1 else 0.0)
        clock, given = clock + gained, given + gained
    assert 1 / 3 <= 1 - clock / given < 1


def timer(clock: FakeClock, hard: float) -> tuple[Pace, MoveTimer]:
    """Return a timer of a move that is due after `hard` seconds, asked for now."""
    pace, search = Pace(clock), Search(uniform)
    search.start(0, *position_and_history(chess.Board()))
    control = Control(clock.now)
    return pace, MoveTimer(pace, search, 0, Budget(hard, hard, True), control, choices=20, leaves=1)


def test_a_round_that_could_end_too_late_is_not_begun() -> None:
    clock = FakeClock()
    pace, is_due = timer(clock, 0.05)
    clock.now += 0.02
    assert not is_due()
    assert pace.longest_round == pytest.approx(0.02)
    clock.now += 0.02
    assert is_due(), "a third round of 20 ms would end at 60 ms"


def test_an_unlucky_round_is_forgotten_slowly() -> None:
    clock = FakeClock()
    pace, is_due = timer(clock, 60.0)
    pace.longest_round = 1.0
    for _ in range(20):
        clock.now += 0.01
        assert not is_due()
    assert 0.01 < pace.longest_round < 0.2
    assert pace.longest_round == pytest.approx(0.9**20)
