"""Players on machines that become busy: no style loses on time."""

import gc
import subprocess
import sys
import time
import weakref
from collections.abc import Iterator
from random import Random

import chess
import numpy as np
import pytest
from numpy.typing import NDArray

from engine.evaluation.handwritten import evaluate
from engine.player import Player, Request, Style
from engine.player.clock import Limits, MoveControl
from engine.search import SearchConfig
from engine.search.human import Correction
from tests.engine.uci.uci_talk import FakeClock, Talk

CORRECTION = Correction([1000, 2000], [0.0, 50.0], [1.0, 1.0], 64)
OVERHEAD = 0.02
STYLES = {
    "search": Style(search=SearchConfig(nodes=50_000, leaves=8), overhead=OVERHEAD),
    "human": Style(correction=CORRECTION, temperature=1.0, overhead=OVERHEAD),
    "policy": Style(temperature=1.0, overhead=OVERHEAD),
}
CONTROLS = {"10+0.1": (10.0, 0.1), "3+0.03": (3.0, 0.03), "20+0": (20.0, 0.0)}
MOVES = 60


class BusyEvaluator:
    """Evaluator on a fake clock: 2 ms on an idle machine, 3 to 30 times as long on a busy one."""

    def __init__(self, seed: int) -> None:
        self.clock, self.random, self.busy = FakeClock(), Random(seed), False
        self.calls = 0

    def __call__(
        self, planes_BP: NDArray[np.uint64]
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        self.calls += 1
        factor = self.random.choice((3, 3, 5, 8, 8, 12, 30)) if self.busy else 1
        self.clock.now += 0.002 * factor * (1 + 0.2 * len(planes_BP))
        return evaluate(planes_BP)


def play_game(
    style: Style, control: tuple[float, float], seed: int, lag: float = OVERHEAD
) -> tuple[float, list[int]]:
    """Play on a clock; return the fewest seconds left, and the number of evaluations per move."""
    evaluator = BusyEvaluator(seed)
    player = Player(evaluator, style, clock=evaluator.clock)
    player.prepare()
    random, board, (left, increment) = evaluator.random, chess.Board(), control
    fewest, calls = left, []
    for move in range(MOVES):
        evaluator.busy = move > 3
        start_time, before = evaluator.clock.now, evaluator.calls
        request = Request(board=board, limits=Limits(left=left, increment=increment), game=seed)
        board.push(player.play(request, MoveControl(start_time)).move)
        evaluator.clock.now += random.uniform(lag / 2, lag)  # between program and player
        left -= evaluator.clock.now - start_time
        fewest, left = min(fewest, left), left + increment
        calls.append(evaluator.calls - before)
        if not board.is_game_over():
            board.push(random.choice(list(board.legal_moves)))
        if board.is_game_over():
            board = chess.Board()
    return fewest, calls


@pytest.mark.parametrize("style", STYLES)
def test_no_game_is_lost_on_time_if_the_machine_becomes_busy(style: str) -> None:
    for control in CONTROLS.values():
        fewest, calls = play_game(STYLES[style], control, 1)
        assert fewest > 0.0
        assert all(count >= 1 for count in calls[:4]), "the network plays while there is time"
        if style == "human":
            assert calls[0] > CORRECTION.simulations / 2, "an idle machine corrects the policy"
        assert sum(count > 0 for count in calls) > MOVES / 2, "the network plays most moves"
    # each move loses 60 to 120 ms between program and player, and gains 100
    fewest, _ = play_game(STYLES[style], CONTROLS["10+0.1"], 1, lag=0.12)
    assert fewest > 0.0


def test_the_network_plays_again_after_an_evaluation_that_took_a_minute() -> None:
    evaluator = BusyEvaluator(1)
    player = Player(evaluator, STYLES["policy"], clock=evaluator.clock)
    player.prepare()
    player.timings.observe(1, 60.0)
    for _ in range(100):
        before = evaluator.calls
        limits = Limits(left=10.0, increment=0.1)
        player.play(Request(board=chess.Board(), limits=limits), MoveControl(evaluator.clock.now))
        if evaluator.calls > before:
            return
    raise AssertionError("the network never plays again")


def test_a_player_is_freed_with_its_trees_without_garbage_collection() -> None:
    player = Player(evaluate, Style(search=SearchConfig(simulations=4)))
    player.play(Request(board=chess.Board()))
    reference = weakref.ref(player)
    gc.disable()
    try:
        del player
        assert reference() is None
    finally:
        gc.enable()


@pytest.fixture
def four_busy_processes() -> Iterator[None]:
    processes = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(4)]
    yield
    for process in processes:
        process.kill()
        process.wait()


class SlowEvaluator:
    """Evaluator that computes for 3 ms, as a small network does, and is calibrated."""

    corrections = dict.fromkeys(("likelihood", "strength"), CORRECTION)

    def __call__(
        self, planes_BP: NDArray[np.uint64]
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        ends = time.thread_time() + 0.003 * (1 + 0.2 * len(planes_BP))
        while time.thread_time() < ends:
            pass
        return evaluate(planes_BP)


def count_forfeits(style: str, control: tuple[float, float], games: int) -> int:
    """Play both sides of games over UCI; return how many were lost on time."""
    forfeits, base, increment = 0, *control
    with Talk(SlowEvaluator()) as talk:
        talk.say(f"setoption name Style value {style}", "setoption name Temperature value 0.5")
        for game in range(games):
            talk.say("ucinewgame", f"setoption name Seed value {game}")
            board, clocks = chess.Board(), [base, base]
            while not board.is_game_over(claim_draw=True) and board.ply() < 200:
                left = f"wtime {1000 * clocks[1]:.0f} btime {1000 * clocks[0]:.0f}"
                gain = f"winc {1000 * increment:.0f} binc {1000 * increment:.0f}"
                words = " ".join(move.uci() for move in board.move_stack)
                start_time = time.monotonic()
                best = talk.best(f"position startpos moves {words}", f"go {left} {gain}")
                clocks[board.turn] -= time.monotonic() - start_time
                if clocks[board.turn] < 0:
                    forfeits += 1
                    break
                clocks[board.turn] += increment
                board.push_uci(best)
    return forfeits


@pytest.mark.slow
@pytest.mark.serial
@pytest.mark.parametrize(("control", "games"), [("10+0.1", 40), ("3+0.03", 20)])
@pytest.mark.parametrize("style", ["search", "human", "human-strength", "policy"])
def test_no_game_is_lost_on_time_beside_four_busy_processes(
    style: str, control: str, games: int, four_busy_processes: None
) -> None:
    assert count_forfeits(style, CONTROLS[control], games) == 0
