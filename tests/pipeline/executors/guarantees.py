"""Checks of the guarantees of `Engine.map`, for every engine."""

from collections.abc import Iterator
from pathlib import Path

from pipeline.executors.local import Engine, Failure
from tests.pipeline.executors import jobs


def each_item_has_one_result_and_few_are_read_ahead(engine: Engine, ahead: int) -> None:
    taken = 0

    def items() -> Iterator[int]:
        nonlocal taken
        for number in range(50):
            taken += 1
            yield number

    results = []
    for result in engine.map(jobs.square, items()):
        results.append(result)
        assert taken <= len(results) + ahead
    assert sorted(results) == [(index, "ok", index * index) for index in range(50)]


def an_error_is_a_result(engine: Engine) -> None:
    results = {index: answer for index, *answer in engine.map(jobs.inverse, [1, 0, 2])}
    assert (results[0], results[2]) == (["ok", 1.0], ["ok", 0.5])
    status, failure = results[1]
    assert status == "error"
    assert isinstance(failure, Failure)
    assert (failure.kind, failure.message) == ("ZeroDivisionError", "division by zero")
    assert "inverse" in failure.traceback


def killed_items_are_tried_three_times(engine: Engine, folder: Path) -> None:
    markers, tries = [folder / "two", folder / "six"], folder / "tries"
    items = [
        (number, str(markers[number // 4]) if number in (2, 6) else "") for number in range(10)
    ]
    results = sorted(engine.map(jobs.die_once, items))
    assert all(marker.exists() for marker in markers), "no worker was killed"
    assert results == [(index, "ok", index) for index in range(10)]
    tries.mkdir()
    poisoned = [(number, str(tries)) for number in range(10)]
    results = sorted(engine.map(jobs.poison, poisoned))
    assert results == [
        (index, "lost", None) if index == 5 else (index, "ok", index) for index in range(10)
    ]
    assert [path.name.partition("-")[0] for path in tries.iterdir()].count("5") == 3
