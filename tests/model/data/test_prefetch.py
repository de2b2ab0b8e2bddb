"""Prefetching: batches keep their order, few are in memory, and errors come with their batch."""

import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from model.data.prefetch import MAX_THREADS, Prefetcher, count_threads
from model.data.rows import Batch
from model.network.encoder import Rows
from tests.waiting import until

CPU = torch.device("cpu")


def numbered(last: int) -> Iterator[Batch]:
    for number in range(last):
        yield {"planes": np.array([number])}


def tensors(batch: Batch) -> list[Rows]:
    return [{name: torch.from_numpy(column) for name, column in batch.items()}]


def take_number(prefetcher: Prefetcher) -> int | None:
    parts = prefetcher.take_parts()
    return None if parts is None else int(parts[0]["planes"][0])


@pytest.mark.parametrize("source", ["iterator", "preparation"])
def test_an_error_is_raised_with_its_batch_and_the_threads_end(source: str) -> None:
    def batches() -> Iterator[Batch]:
        yield from numbered(2)
        if source == "iterator":
            raise OSError("gone")
        yield {"planes": np.array([-1])}

    def prepare(batch: Batch) -> list[Rows]:
        if batch["planes"][0] < 0:
            raise OSError("gone")
        return tensors(batch)

    with Prefetcher(batches(), prepare, CPU) as prefetcher:
        assert [take_number(prefetcher), take_number(prefetcher)] == [0, 1]
        with pytest.raises(OSError, match="gone"):
            take_number(prefetcher)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("next-batch")]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU")
def test_copies_on_another_stream_are_complete_when_read() -> None:
    from model.data.rows import copy_to

    device, tensors = torch.device("cuda"), [torch.full((1 << 22,), number) for number in range(6)]

    def prepare(batch: Batch) -> list[Rows]:
        return [{"planes": copy_to(tensors[int(batch["planes"][0])], device)}]

    with Prefetcher(numbered(6), prepare, device) as prefetcher:
        for tensor in tensors:
            parts = prefetcher.take_parts()
            assert parts is not None
            assert torch.equal(parts[0]["planes"].cpu(), tensor)


@pytest.mark.parametrize("threads", [1, 3, 8])
def test_order_and_memory_do_not_depend_on_threads(threads: int) -> None:
    delays = np.random.default_rng(threads).uniform(0, 0.004, 60)
    read: list[int] = []

    def batches() -> Iterator[Batch]:
        for batch in numbered(60):
            read.append(int(batch["planes"][0]))
            yield batch

    def prepare(batch: Batch) -> list[Rows]:
        time.sleep(delays[int(batch["planes"][0])])
        return tensors(batch)

    with Prefetcher(batches(), prepare, CPU, threads) as prefetcher:
        assert not read, "reading begins with the first batch that is taken"
        for number in range(60):
            assert take_number(prefetcher) == number
            ahead = min(60, number + 2 + threads)
            until(lambda ahead=ahead: len(read) >= ahead)
            assert len(read) <= number + 3 + threads, "memory is bounded"
        assert take_number(prefetcher) is None
    assert read == list(range(60))


def test_the_number_of_threads_depends_on_device_and_processes() -> None:
    gpu = torch.device("cuda")
    assert count_threads(CPU, 8, 1) == 1
    assert [count_threads(gpu, threads, 1) for threads in (1, 8, 64)] == [1, 7, MAX_THREADS]
    assert count_threads(gpu, 16, 4) == 3
