"""A run that is told to stop: wherever it is, it saves its last whole step at once, and goes on to
the same bits."""

import itertools
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numba
import pytest
import torch

from engine import compiling
from engine.progress import silent
from model.checkpoint import read_card
from model.data.rows import blank_rows
from model.network.network import build
from model.training import step as stepping
from model.training import stopping
from model.training.config import TrainConfig
from model.training.loop import train
from model.training.stopping import StopCheck, WorkInterrupted, check_in_layers
from tests.model.synthetic import TINY, Batch, FakeClock, batch, stream

REPORT_STEPS = 2
CONFIG = TrainConfig(
    steps=6,
    batch_size=16,
    norm_rows=4,
    threads=1,
    amp="off",
    device="cpu",
)


def trained(
    out: Path,
    config: TrainConfig = CONFIG,
    stop: Callable[[], bool] = lambda: False,
    batches: Callable[[int], Iterator[Batch]] | None = None,
    validation: Callable[[], Iterator[Batch]] | None = None,
) -> dict[str, Any]:
    return train(
        config,
        TINY,
        batches or stream(16),
        out,
        validation=validation,
        data={},
        progress=silent,
        stop=stop,
    )


def weights(card: dict[str, Any]) -> str:
    return str(card["files"]["weights"]["sha256"])


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Give the card of a run that was never stopped."""
    return trained(tmp_path_factory.mktemp("whole"))


def test_stopped_anywhere_inside_of_steps_ends_with_the_same_bits(
    whole: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is asked before every layer, forward and backward, and stopped at ever another question.

    Twice for whatever it waits for: how often it asks there depends on the machine's speed
    otherwise.
    """
    waited: Counter[Future[Any]] = Counter()

    def wait_twice(futures: list[Future[Any]], seconds: float) -> Any:
        waited.update(futures)
        return wait(futures, 240) if waited[futures[0]] > 2 else SimpleNamespace(done=set())

    monkeypatch.setattr(stopping, "POLL_SECONDS", 0.0)
    monkeypatch.setattr(stopping, "wait", wait_twice)
    stops = inside = 0
    left = 40

    def stop() -> bool:
        nonlocal left
        left -= 1
        return left < 0

    real, moments = stepping.take_step, []

    def step(*arguments: Any) -> Any:
        before = [tensor.clone() for tensor in arguments[0].network.state_dict().values()]
        try:
            return real(*arguments)
        except WorkInterrupted:
            after = arguments[0].network.state_dict().values()
            assert all(torch.equal(mine, then) for mine, then in zip(after, before, strict=True))
            moments.append(arguments[0].step)
            raise

    monkeypatch.setattr("model.training.loop.take_step", step)
    while not (card := trained(tmp_path, stop=stop))["finished"]:
        stops += 1
        inside = len(moments)
        assert read_card(tmp_path)["step"] == card["step"]
        left = 40 + 17 * stops
        assert stops < 60
    assert inside > 2, "some of the stops were inside of a step"
    assert weights(card) == weights(whole)


def test_every_layer_looks_whether_to_stop_on_the_way_there_and_back() -> None:
    network = build(TINY, seed=0)
    seen: list[int] = []
    check_in_layers(network, lambda: seen.append(len(seen)))
    prediction = network(blank_rows(TINY, 2, 1))
    forward = len(seen)
    assert forward >= sum(not list(layer.children()) for layer in network.modules()) - 1
    (prediction.logits.sum() + prediction.wdl[:, 0].sum()).backward()  # type: ignore[no-untyped-call]
    assert len(seen) > 1.5 * forward


def test_a_run_that_waits_for_rows_saves_before_they_come(
    whole: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows of step 3 come once its state is on the disk, and not before."""
    waits, taken = threading.Event(), itertools.count(1)
    real = stepping.take_step

    def step(*arguments: Any) -> Any:
        totals = real(*arguments)
        if next(taken) == 3:
            waits.set()
        return totals

    monkeypatch.setattr("model.training.loop.take_step", step)

    def batches(step: int) -> Iterator[Batch]:
        yield from itertools.islice(stream(16)(step), 3)
        end = time.monotonic() + 240
        while read_card(tmp_path)["step"] != 3 and time.monotonic() < end:
            time.sleep(0.01)
        yield from stream(16)(step + 3)

    card = trained(tmp_path, stop=waits.is_set, batches=batches)
    assert (card["step"], card["finished"]) == (3, False)
    assert weights(trained(tmp_path)) == weights(whole)


@pytest.mark.parametrize("every", [3, 0])
def test_a_run_that_measures_is_stopped_meanwhile(tmp_path: Path, every: int) -> None:
    """Every 3 steps, or at the end alone: the measurement is left, and made when the run is
    continued."""
    config, asked = replace(CONFIG, validation_every_steps=every), threading.Event()

    def endless() -> Iterator[Batch]:
        yield batch(16)
        asked.set()
        for _ in range(2400):
            time.sleep(0.1)
            yield batch(16)
        raise AssertionError("measured on though it was told to stop")

    card = trained(tmp_path / "parts", config, asked.is_set, validation=endless)
    assert (card["step"], card["finished"]) == (every or 6, False)
    assert not [name for name in card["metrics"] if name.startswith("validation")]
    again = trained(tmp_path / "parts", config, validation=lambda: iter([batch(16)]))
    other = trained(tmp_path / "whole", config, validation=lambda: iter([batch(16)]))
    assert again["finished"]
    assert weights(again) == weights(other)
    assert again["metrics"]["validation_top1"] == other["metrics"]["validation_top1"]


def test_a_wish_to_stop_ends_a_compilation_and_a_kernel_can_be_compiled_after_it() -> None:
    @numba.njit
    def inner(value: int) -> int:
        return value + 1

    @numba.njit
    def outer(value: int) -> int:
        total = 0
        for at in range(value):
            total += inner(at)
        return total

    passes = itertools.count()

    def check() -> None:
        if next(passes) >= 30:
            raise WorkInterrupted

    with compiling.interruptible(check), pytest.raises(WorkInterrupted):
        outer(3)
    assert outer(3) == 6


def test_a_kernel_that_is_compiled_is_told_once_and_one_that_is_loaded_is_not(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiling.log_once.cache_clear()
    monkeypatch.setattr(compiling.LOG, "propagate", True)

    @numba.njit
    def doubled(value: float) -> float:
        return value + value

    with compiling.announce_compiling():
        assert doubled(2) == 4
        assert doubled(2.5) == 5.0
        assert doubled(3) == 6
    assert [record.message for record in caplog.records] == [compiling.MESSAGE]
    assert "compiling kernels:" in compiling.MESSAGE


def test_what_is_slow_once_takes_none_of_a_runs_minutes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = FakeClock(monkeypatch, seconds_per_step=0.25)
    real, calls = stepping.row_losses, itertools.count()

    def slow_at_first(*arguments: Any) -> Any:
        if not next(calls):
            clock.now += 3.0  # as a compiler does
        return real(*arguments)

    monkeypatch.setattr(stepping, "row_losses", slow_at_first)

    def slow_to_open(step: int) -> Iterator[Batch]:
        clock.now += 3.0  # as a store far away is
        return stream(16)(step)

    card = trained(tmp_path, replace(CONFIG, steps=None, minutes=0.025), batches=slow_to_open)
    assert (card["finished"], card["step"], card["seconds"]) == (True, 7, 1.5)


def test_whoever_said_stop_is_not_asked_again_and_other_threads_only_look() -> None:
    answers = iter([False, True])
    wish = StopCheck(lambda: next(answers))
    assert not wish()
    thread = threading.Thread(target=wish.check)
    thread.start()
    thread.join()
    assert wish()
    assert wish()
    with pytest.raises(WorkInterrupted):
        wish.check()
    StopCheck(lambda: True, inside=False).check()
