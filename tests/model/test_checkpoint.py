"""Checkpoints: what is written is read back, and what does not fit is refused by name, without
running anything."""

import hashlib
import itertools
import json
import os
import pickle
import stat
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch

from engine.temporaries import is_temporary, temporary_name
from model.checkpoint import (
    CARD,
    LARGEST_CARD,
    CardError,
    CheckpointError,
    DamagedFileError,
    EncodingMismatchError,
    NoCheckpointError,
    TensorMismatchError,
    delete_superseded,
    load,
    read_card,
    save,
    write_atomically,
)
from model.data.rows import load_rows
from model.inference.columns import AnswerError
from model.inference.evaluator import NetworkEvaluator, evaluator
from model.network.memory import OutOfMemoryError, memory_errors
from model.network.network import build
from model.network.preset import Preset, preset_row
from tests.model.killed import Killed, kill_before
from tests.model.synthetic import TINY, TINY_SEED, batch
from tests.processes import NOBODY


def make(directory: Path, row: Preset = TINY, seed: int = 3, step: int = 7) -> dict[str, Any]:
    directory.mkdir(exist_ok=True)
    card = {
        "preset": preset_row(row),
        "parameters": 9,
        "step": step,
        "positions": 70,
        "seconds": 1.5,
        "finished": True,
        "metrics": {"loss": 1.5},
        "config": {},
        "data": {},
    }
    return save(directory, card, {"weights": build(row, seed).state_dict()})


def names_of(card: dict[str, Any]) -> set[str]:
    return {entry["name"] for entry in card["files"].values()}


def edit(directory: Path, **changes: object) -> None:
    card = json.loads((directory / CARD).read_text())
    (directory / CARD).write_text(json.dumps(card | changes))


def test_a_checkpoint_is_read_back_as_it_was(tmp_path: Path) -> None:
    written = make(tmp_path)
    network, card = load(tmp_path)
    assert card == written
    assert not network.training
    for name, tensor in build(TINY, 3).state_dict().items():
        assert torch.equal(network.state_dict()[name], tensor), name


OLDER = "weights-7.safetensors"
"""Name that a save of an earlier version gave."""


def make_older(directory: Path) -> Path:
    """Make a checkpoint with an earlier version's file name, and return the path of its weights."""
    (name,) = names_of(make(directory))
    entry = json.loads((directory / CARD).read_text())["files"]["weights"]
    edit(directory, files={"weights": entry | {"name": OLDER}})
    return (directory / name).rename(directory / OLDER)


def test_an_earlier_versions_file_loads_and_goes_with_the_next_save(tmp_path: Path) -> None:
    path = make_older(tmp_path)
    assert torch.equal(load(tmp_path)[0].stem[0].weight, build(TINY, 3).stem[0].weight)  # type: ignore[arg-type]
    written = make(tmp_path, seed=4)
    assert not path.exists()
    assert load(tmp_path)[1] == written


def test_a_newer_save_leaves_no_older_files(tmp_path: Path) -> None:
    make(tmp_path, step=7)
    temporary = temporary_name("weights-9.safetensors").replace(f"-{os.getpid()}-", f"-{NOBODY}-")
    (tmp_path / temporary).write_bytes(b"killed while writing")
    for name in (
        "weights-9.safetensors",
        f"weights-7-{'0' * 16}.safetensors",
        f"training-9-{'0' * 16}.safetensors",
    ):
        (tmp_path / name).write_bytes(b"killed before its card was written")
    copies = {
        "weights-7.safetensors.bak",
        "weights-3.safetensors",
        "model.safetensors",
        "weights-8.safetensors.tmp",
    }
    for name in copies:
        (tmp_path / name).write_bytes(b"a copy that somebody made")
    card = make(tmp_path, step=8)
    assert {path.name for path in tmp_path.iterdir()} == {CARD, *names_of(card), *copies}
    assert all((tmp_path / name).read_bytes() == b"a copy that somebody made" for name in copies)


@pytest.mark.parametrize("name", ["../weights-7.safetensors", CARD, "of this card", "model.onnx"])
def test_a_card_deletes_only_tensor_files_beside_it(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "net"
    (mine,) = names_of(make(folder, step=8))
    for other in (tmp_path / "weights-7.safetensors", folder / "model.onnx"):
        other.write_bytes(b"of somebody else")
    name = mine if name == "of this card" else name
    delete_superseded(folder, read_card(folder) | {"superseded": [name]})
    assert (folder / name).exists()


@pytest.mark.parametrize("step", [7, 8])
def test_a_save_killed_before_any_of_its_operations_leaves_a_checkpoint_that_loads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    """Whether the step has moved on or not; the next save leaves no file of the killed one."""
    for kill_at in itertools.count():
        folder = tmp_path / str(kill_at)
        old = make(folder, seed=3, step=7)
        with monkeypatch.context() as patch, suppress(Killed):
            killed = kill_before(patch, kill_at)
            make(folder, seed=4, step=step)
        network, card = load(folder)
        seed = 3 if card == old else 4
        assert torch.equal(network.stem[0].weight, build(TINY, seed).stem[0].weight)  # type: ignore[arg-type]
        if not killed():
            break
        card = make(folder, seed=5, step=9)
        kept = {path.name for path in folder.iterdir() if not is_temporary(path.name)}
        assert kept == {CARD, *names_of(card)}, "temporary files go once their process is gone"
    assert kill_at >= 3, "the weights, the card, and the older weights"


def test_no_card(tmp_path: Path) -> None:
    with pytest.raises(NoCheckpointError, match="holds no checkpoint"):
        load(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(NoCheckpointError):
        load(tmp_path / "file")


@pytest.mark.parametrize("change", [{"encoding_version": 99}, {"moves_hash": "0" * 16}])
def test_another_encoding(tmp_path: Path, change: dict[str, object]) -> None:
    make(tmp_path)
    edit(tmp_path, **change)
    with pytest.raises(EncodingMismatchError, match="encoding"):
        load(tmp_path)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        "{}",
        '{"format_version": 2}',
        "[" * 100_000,
        "\0\xff",
        '{"format_version": 1}',
    ],
)
def test_a_card_that_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / CARD).write_bytes(text.encode("latin-1"))
    with pytest.raises(CardError):
        load(tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        {"preset": {"name": "x"}},
        {"preset": preset_row(TINY) | {"width": 10**9}},
        {"preset": preset_row(TINY) | {"view": "no"}},
        {"step": "7"},
        {"files": []},
        {"seconds": None},
        {"positions": True},
        {"step": -1},
        {"parameters": "many"},
        {"parameters": True},
        {"metrics": []},
        {"metrics": {"loss": "low"}},
        {"validation_seconds": None},
        {"data": []},
        {"data": {"datasets": {}}},
        {"data": {"datasets": ["rapid"]}},
        {"data": {"datasets": [{"name": 7}]}},
    ],
)
def test_a_card_whose_fields_cannot_be(tmp_path: Path, change: dict[str, object]) -> None:
    make(tmp_path)
    edit(tmp_path, **change)
    with pytest.raises(CardError):
        load(tmp_path)


def test_a_card_that_is_far_too_large_is_not_read(tmp_path: Path) -> None:
    make(tmp_path)
    os.truncate(tmp_path / CARD, LARGEST_CARD + 1)
    with pytest.raises(CardError, match="is larger than 4 MiB"):
        read_card(tmp_path)


def test_tensors_that_do_not_fit_cost_no_memory_for_the_lie(tmp_path: Path) -> None:
    make(tmp_path)
    edit(tmp_path, preset=preset_row(TINY) | {"width": 4096, "blocks": 100})
    with pytest.raises(TensorMismatchError, match="missing or unknown"):
        load(tmp_path)
    edit(tmp_path, preset=preset_row(TINY) | {"width": 4096})
    with pytest.raises(TensorMismatchError, match=r"stem\.0\.weight"):
        load(tmp_path)


def test_a_card_of_very_many_blocks_is_refused_before_one_is_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(tmp_path)
    edit(tmp_path, preset=preset_row(TINY) | {"blocks": 4096})
    monkeypatch.setattr("model.network.network.BLOCKS", {})
    with pytest.raises(CardError, match=r"blocks is 4096, and must be in 1\.\.128"):
        load(tmp_path)


def test_a_tensor_file_that_is_far_too_large_is_not_read(tmp_path: Path) -> None:
    make(tmp_path)
    os.truncate(next(tmp_path.glob("weights-*")), 1 << 40)
    with pytest.raises(DamagedFileError, match="too large for its preset"):
        load(tmp_path)


def test_damaged_and_missing_tensor_files(tmp_path: Path) -> None:
    make(tmp_path)
    path = next(tmp_path.glob("weights-*"))
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(DamagedFileError, match="hash differs"):
        load(tmp_path)
    path.unlink()
    with pytest.raises(DamagedFileError, match="cannot be read"):
        load(tmp_path)


class Trap:
    def __reduce__(self) -> Any:
        return (Path.touch, (Path("trapped"),))


@pytest.mark.parametrize(
    "data", [b"", b"\xff" * 100, pickle.dumps(Trap()), safetensors.torch.save({})[:4]]
)
def test_a_file_that_is_not_safetensors_runs_nothing(
    tmp_path: Path, data: bytes, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    make(tmp_path)
    (tmp_path / "weights-7.safetensors").write_bytes(data)
    entry = {
        "name": "weights-7.safetensors",
        "bytes": len(data),
        "sha256": hashlib.sha256(data).hexdigest(),
    }
    edit(tmp_path, files={"weights": entry})
    with pytest.raises(DamagedFileError, match="not a safetensors file"):
        load(tmp_path)
    assert not Path("trapped").exists()


@pytest.mark.parametrize(
    "name", ["../weights-7.safetensors", "/etc/passwd", "weights-7.safetensors/..", "", None]
)
def test_a_card_names_no_files_elsewhere(tmp_path: Path, name: object) -> None:
    make(tmp_path)
    edit(tmp_path, files={"weights": {"name": name, "sha256": ""}})
    with pytest.raises(DamagedFileError, match="names no weights file"):
        load(tmp_path)


def test_a_rename_is_put_on_the_disk_too(tmp_path: Path, monkeypatch: Any) -> None:
    synced = []

    def fsync(descriptor: int) -> None:
        synced.append((stat.S_ISDIR(os.fstat(descriptor).st_mode), (tmp_path / "x").exists()))

    monkeypatch.setattr(os, "fsync", fsync)
    write_atomically(tmp_path / "x", b"data")
    assert synced == [(False, False), (True, True)]


def test_a_disk_that_refuses_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="cannot be written"):
        write_atomically(tmp_path / "no such directory" / "x", b"")


@pytest.mark.parametrize("row", [TINY, TINY_SEED], ids=lambda row: row.name)
def test_evaluator_answers_in_the_movers_labels(tmp_path: Path, row: Preset) -> None:
    make(tmp_path, row)
    data = batch(9)
    logits, wdl = evaluator(tmp_path, device="cpu", amp="off")(data["planes"])
    assert logits.dtype == wdl.dtype == np.float32
    assert wdl.sum(1) == pytest.approx(np.ones(9))
    network, _ = load(tmp_path)
    with torch.inference_mode():
        prediction = network(load_rows(row, data, torch.device("cpu")))
    assert np.array_equal(logits, prediction.logits.numpy())
    assert np.array_equal(wdl, prediction.wdl.exp().numpy())


@pytest.mark.parametrize("row", [TINY, TINY_SEED], ids=lambda row: row.name)
def test_an_evaluator_refuses_to_answer_with_nan(tmp_path: Path, row: Preset) -> None:
    network = build(row, 3).eval()
    with torch.no_grad():
        for weight in network.parameters():
            weight.fill_(3e38)  # finite, so the file is loaded, and the answers are not
    with pytest.raises(AnswerError, match=f"the network {row.name} answers with NaN or infinity"):
        NetworkEvaluator(network, device="cpu", amp="off")(batch(3)["planes"])


def test_an_evaluator_without_memory_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    called = NetworkEvaluator(build(TINY, 3), device="cpu", amp="off")

    def fail(*_: object) -> None:
        torch.empty(1 << 60, dtype=torch.uint8)

    monkeypatch.setattr(called.network, "forward", fail)
    with pytest.raises(
        OutOfMemoryError, match=r"evaluating 3 positions by the network tiny needs more memory"
    ):
        called(batch(3)["planes"])


class PanicException(BaseException):
    """Named as that of safetensors, which cannot be imported."""


@pytest.mark.parametrize(
    ("raised", "caught"),
    [
        (MemoryError(), OutOfMemoryError),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), OutOfMemoryError),
        (PanicException("PyObject pointer is null"), OutOfMemoryError),
        (RuntimeError("shapes differ"), RuntimeError),
        (PanicException("index out of bounds"), PanicException),
        (KeyboardInterrupt(), KeyboardInterrupt),
    ],
    ids=repr,
)
def test_failed_allocations_are_told_from_other_errors(
    raised: BaseException, caught: type[BaseException]
) -> None:
    with pytest.raises(caught) as found, memory_errors("work", "free some"):
        raise raised
    assert (str(found.value) == "work needs more memory than there is: free some") == (
        caught is OutOfMemoryError
    )


def test_evaluator_takes_any_number_of_rows(tmp_path: Path, monkeypatch: Any) -> None:
    make(tmp_path)
    planes = batch(5)["planes"]
    whole = evaluator(tmp_path, amp="off")(planes)
    monkeypatch.setattr("model.inference.columns.LARGEST_BATCH", 2)
    parts = evaluator(tmp_path, amp="off")(planes)
    assert np.allclose(whole[0], parts[0], atol=1e-5)
    assert np.allclose(whole[1], parts[1], atol=1e-6)
    assert [part.shape for part in evaluator(tmp_path)(planes[:0])] == [(0, 4096), (0, 3)]


def test_read_card_is_enough_to_look_at_a_checkpoint(tmp_path: Path) -> None:
    assert make(tmp_path) == read_card(tmp_path)
