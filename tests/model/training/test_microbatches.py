"""A step in parts: whoever works on them, however many at once, the same bits; and each part's norms see its rows alone."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from model.data.inputs import DeviceBatch
from model.training import microbatches
from model.training.distributed import World
from model.training.microbatches import Batch, PartsError, Replicas, parts_per_process, split, thread_pool
from model.training.state import backward, begin, prepare, take_step
from tests.model.synthetic import TINY, batch
from tests.model.training.test_trainer import CONFIG, run

CPU, GPU = torch.device("cpu"), torch.device("cuda")


def test_threads_change_no_bit(tmp_path: Path) -> None:
    """One thread takes the parts in turn, two have two each, three share four unevenly, and more than parts idle."""
    config = replace(CONFIG, parts=4, optimizer="muon")
    hashes = {
        threads: run(tmp_path / str(threads), replace(config, threads=threads))["files"]["weights"]["sha256"]
        for threads in (1, 2, 3, 4)
    }
    assert len(set(hashes.values())) == 1
    other = run(tmp_path / "other", replace(config, parts=2))
    assert other["parts"] == 2
    assert other["files"]["weights"]["sha256"] != hashes[1], "parts do change what is learned"


def test_a_run_keeps_the_parts_that_it_began_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Continued where another number of parts would suit, on a GPU say, it ends with the weights of one undisturbed."""
    monkeypatch.setattr(microbatches, "PART", 4)
    whole = run(tmp_path / "whole")
    assert run(tmp_path / "two", stop_after=3)["parts"] == 4
    monkeypatch.setattr(microbatches, "PART", 16)
    two = run(tmp_path / "two")
    assert two["parts"] == 4
    assert two["files"]["weights"]["sha256"] == whole["files"]["weights"]["sha256"]


@pytest.mark.parametrize("parts", [3, 12])
def test_norms_see_a_parts_own_rows_and_remember_the_mean_of_all(parts: int) -> None:
    """Also where there are more parts than copies of the network to work on them."""
    rows = batch(24)
    config = replace(CONFIG, parts=parts, batch_size=24)
    together = begin(config, TINY)
    take_step(together, prepare(together, rows), 0.5)
    alone = []
    for part in range(parts):
        one = begin(replace(config, parts=1, batch_size=24 // parts), TINY)
        take_step(one, prepare(one, {name: column[part::parts] for name, column in rows.items()}), 0.5)
        alone.append(dict(one.network.named_buffers()))
    found = [name for name, buffer in together.network.named_buffers() if buffer.is_floating_point()]
    assert len(found) > 4
    for name in found:
        mean = torch.stack([buffers[name] for buffers in alone]).mean(0)
        assert torch.allclose(together.network.get_buffer(name), mean, atol=1e-6), name
        assert not torch.equal(alone[0][name], alone[1][name]), name


def test_replicas_share_weights_and_nothing_else() -> None:
    network = begin(CONFIG, TINY).network
    made = Replicas(network, 3, World())
    first, second = made.copies[1], made.copies[2]
    for weight, mine, other in zip(network.parameters(), first.parameters(), second.parameters(), strict=True):
        assert weight.data_ptr() == mine.data_ptr() == other.data_ptr()
        assert mine is not weight
    with torch.no_grad():
        next(network.parameters()).add_(1.0)
    assert torch.equal(next(network.parameters()), next(second.parameters()))
    assert {id(buffer) for buffer in network.buffers()}.isdisjoint(id(buffer) for buffer in first.buffers())


@pytest.mark.parametrize("threads", [1, 2])
def test_many_parts_add_up_with_a_few_copies(threads: int) -> None:
    """By hand: each part by a network of its own; 60 parts on a handful of copies, whose gradients are all that is kept."""
    config, rows = replace(CONFIG, parts=60, batch_size=120), batch(120)
    started = begin(config, TINY)
    assert len(started.replicas.copies) < 20
    prepared = prepare(started, rows)
    wanted = [torch.zeros_like(weight) for weight in started.network.parameters()]
    for part in range(60):
        alone = begin(config, TINY)
        backward(alone, alone.network, prepared[part], 0.0)
        for total, weight in zip(wanted, alone.network.parameters(), strict=True):
            total += weight.grad if weight.grad is not None else 0.0
    with thread_pool(60, threads, CPU) as pool:
        started.replicas.work(lambda copied, part: backward(started, copied, part, 0.0), prepared, pool)
    for total, weight in zip(wanted, started.network.parameters(), strict=True):
        assert weight.grad is not None
        assert torch.allclose(weight.grad, total, atol=1e-6)
    assert all(weight.grad is None for copied in started.replicas.copies for weight in copied.parameters())


def test_a_part_that_fails_is_heard_of() -> None:
    made = Replicas(begin(CONFIG, TINY).network, 2, World())

    def fails(replica: torch.nn.Module, part: DeviceBatch) -> None:
        raise ArithmeticError("no")

    with thread_pool(2, 2, CPU) as pool, pytest.raises(ArithmeticError, match="no"):
        made.work(fails, [{}, {}], pool)


def test_rows_are_dealt_to_parts_as_to_processes() -> None:
    """Part 0 and 1 of process 0 of two are parts 0 and 2 of one process: a run has the same parts among one or many."""
    rows: Batch = {"planes": np.arange(16)}
    one = [part["planes"].tolist() for part in split(rows, 4)]
    two = [part["planes"].tolist() for rank in (0, 1) for part in split({"planes": np.arange(16)[rank::2]}, 2)]
    assert [two[0], two[2], two[1], two[3]] == one
    with pytest.raises(PartsError, match="16 rows of a step cannot be cut into 3"):
        list(split(rows, 3))


@pytest.mark.parametrize(
    ("parts", "batch_size", "device", "size", "wanted"),
    [
        (0, 256, CPU, 1, 2),
        (0, 256, CPU, 2, 1),
        (0, 2048, CPU, 1, 16),
        (0, 2048, GPU, 1, 1),
        (0, 16, CPU, 1, 1),
        (0, 384, CPU, 1, 3),
        (0, 500, CPU, 1, 2),  # 3 would not divide it
        (4, 256, CPU, 2, 2),
        (4, 2048, GPU, 1, 4),
    ],
)
def test_how_many_parts(parts: int, batch_size: int, device: torch.device, size: int, wanted: int) -> None:
    assert parts_per_process(parts, batch_size, device, World(0, size, 0)) == wanted


def test_parts_that_cannot_be_are_refused() -> None:
    with pytest.raises(PartsError, match="a batch of 64 cannot be cut into 4 equal parts for 3 processes"):
        parts_per_process(4, 64, CPU, World(0, 3, 0))
