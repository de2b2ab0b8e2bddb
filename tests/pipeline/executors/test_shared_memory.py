"""What goes between processes beside their pipe is what was sent, and is gone with them."""

import gc
import multiprocessing
import os
import pickle
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.dumps.reader import Chunk
from pipeline.executors import shared_memory
from pipeline.executors.local import LocalEngine
from tests.waiting import until

ways = pytest.mark.parametrize("in_memory", [shared_memory.IN_MEMORY, False], ids=["a file in memory", "the pipe"])


def sent(value: object) -> Any:
    """Send a value through a pipe of this process and give what comes out."""
    theirs, ours = multiprocessing.Pipe()
    with theirs, ours:
        message = shared_memory.Message(value)
        sender = threading.Thread(target=message.send, args=(theirs,))
        sender.start()
        try:
            return shared_memory.receive(ours)
        finally:
            sender.join()
            message.close()


def chunk(size: int) -> Chunk:
    text = np.random.default_rng(size).integers(0, 256, size, dtype=np.uint8).tobytes()
    return Chunk(3, 1, 40, 5000, text, np.arange(0, size, 1000))


def handles() -> set[str]:
    """Name the files that this process has open or sees in memory."""
    open_files = {os.readlink(path) for path in Path("/proc/self/fd").iterdir() if path.is_symlink()}  # noqa: PTH115
    return {name for name in open_files if "memfd" in name} | {
        line for line in Path("/proc/self/maps").read_text().splitlines() if "memfd:fianchetto" in line
    }


@ways
@pytest.mark.parametrize("size", [0, 1, shared_memory.LEAST - 1, shared_memory.LEAST, (9 << 20) + 13])
def test_a_chunk_arrives_as_it_was(monkeypatch: pytest.MonkeyPatch, in_memory: bool, size: int) -> None:
    monkeypatch.setattr(shared_memory, "IN_MEMORY", in_memory)
    one = chunk(size)
    other = sent(one)
    assert bytes(other.text) == one.text
    assert np.array_equal(other.starts, one.starts)
    assert other.starts.flags.writeable
    assert memoryview(other.text).readonly
    assert (other.index, other.source, other.first_game, other.offset) == (3, 1, 40, 5000)


@ways
def test_several_large_parts_keep_their_places(monkeypatch: pytest.MonkeyPatch, in_memory: bool) -> None:
    monkeypatch.setattr(shared_memory, "IN_MEMORY", in_memory)
    value = {"a": chunk(400_000), "b": [chunk(10), chunk(300_000)], "c": np.arange(100_000)}
    other = sent(value)
    assert [bytes(part.text) for part in (other["a"], *other["b"])] == [
        part.text
        for part in (value["a"], *value["b"])  # type: ignore[misc]
    ]
    assert np.array_equal(other["c"], value["c"])  # type: ignore[arg-type]
    other["c"][0] = 7  # what could be written to still can


def test_a_chunk_is_pickled_by_every_protocol() -> None:
    one = chunk(1000)
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        other = pickle.loads(pickle.dumps(one, protocol))
        assert bytes(other.text) == one.text
        assert np.array_equal(other.starts, one.starts)


@pytest.mark.skipif(not shared_memory.IN_MEMORY, reason="this system has no files in memory")
def test_a_system_that_refuses_such_files_has_the_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []

    def refuse(name: str) -> int:
        if made:
            raise PermissionError(1, "Operation not permitted")
        made.append(real(name))
        return made[0]

    real = os.memfd_create
    monkeypatch.setattr(os, "memfd_create", refuse)
    value = [chunk(400_000), chunk(500_000)]
    assert [bytes(part.text) for part in sent(value)] == [part.text for part in value]
    assert not handles(), "nor is the first left open"


@pytest.mark.skipif(not shared_memory.IN_MEMORY, reason="this system has no files in memory")
def test_nothing_is_left_of_a_message() -> None:
    other = sent(chunk(1 << 20))
    assert handles(), "it is seen while it is held"
    del other
    gc.collect()
    assert not handles()


@pytest.mark.skipif(not shared_memory.IN_MEMORY, reason="this system has no files in memory")
def test_nothing_is_left_where_nobody_receives() -> None:
    theirs, ours = multiprocessing.Pipe()
    ours.close()
    message = shared_memory.Message(chunk(1 << 20))
    with theirs, pytest.raises(OSError):
        message.send(theirs)
    message.close()
    assert not handles()


def test_a_message_is_sent_again_where_it_was_lost() -> None:
    one = chunk(1 << 20)
    message = shared_memory.Message(one)
    for _ in range(3):
        theirs, ours = multiprocessing.Pipe()
        with theirs, ours:
            sender = threading.Thread(target=message.send, args=(theirs,))
            sender.start()
            assert bytes(shared_memory.receive(ours).text) == one.text
            sender.join()
    message.close()


def _length(one: Chunk) -> tuple[int, int]:
    return len(one.text), int(np.frombuffer(one.text, dtype=np.uint8).sum())


def _leave(path: Path) -> None:
    path.touch()


def test_workers_get_chunks_and_hold_none(tmp_path: Path) -> None:
    chunks = [chunk(1_000_000 + number) for number in range(12)]
    function: Callable[[Any], Any] = _length
    found = {index: value for index, status, value in LocalEngine(2).map(function, chunks) if status == "ok"}
    assert found == {index: _length(one) for index, one in enumerate(chunks)}
    if shared_memory.IN_MEMORY:
        assert not handles(), "nor does the driver"


def test_one_that_stops_in_the_middle_holds_none() -> None:
    results = LocalEngine(2).map(_length, [chunk(1_000_000 + number) for number in range(12)])
    assert next(results)[1] == "ok"
    results.close()
    if shared_memory.IN_MEMORY:
        assert not handles()


def test_a_worker_has_its_next_item_before_anybody_hears_of_its_last(tmp_path: Path) -> None:
    results = LocalEngine(2).map(_leave, [tmp_path / str(number) for number in range(6)])
    next(results)
    # with two workers the third item is begun while the first result is looked at
    until(lambda: len(list(tmp_path.iterdir())) >= 3)
    list(results)
    assert len(list(tmp_path.iterdir())) == 6
