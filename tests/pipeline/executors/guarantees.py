"""Checks of the guarantees of `Engine.map`, for every engine."""

from collections.abc import Iterator
from pathlib import Path

from pipeline.executors.local import Engine, Failure
from tests.pipeline.executors import jobs


def check_results(engine: Engine, ahead: int) -> None:
    """Each item has one result, few items are read ahead, and an exception is a result."""
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
    by_index = {index: answer for index, *answer in engine.map(jobs.invert, [1, 0, 2])}
    assert (by_index[0], by_index[2]) == (["ok", 1.0], ["ok", 0.5])
    status, failure = by_index[1]
    assert status == "error"
    assert isinstance(failure, Failure)
    assert (failure.kind, failure.message) == ("ZeroDivisionError", "division by zero")
    assert "invert" in failure.traceback


def check_retries(engine: Engine, folder: Path) -> None:
    """An item whose worker is killed is tried three times, and the others have their results."""
    markers, attempts = [folder / "two", folder / "six"], folder / "attempts"
    items = [
        (number, str(markers[number // 4]) if number in (2, 6) else "") for number in range(10)
    ]
    results = sorted(engine.map(jobs.die_once, items))
    assert all(marker.exists() for marker in markers), "no worker was killed"
    assert results == [(index, "ok", index) for index in range(10)]
    attempts.mkdir()
    results = sorted(
        engine.map(jobs.die_at_item_5, [(number, str(attempts)) for number in range(10)])
    )
    assert results == [
        (index, "lost", None) if index == 5 else (index, "ok", index) for index in range(10)
    ]
    assert [path.name.partition("-")[0] for path in attempts.iterdir()].count("5") == 3
