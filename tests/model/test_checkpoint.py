"""Checkpoints: they are read back unchanged, and invalid ones are refused without running code."""

import hashlib
import itertools
import json
import os
import pickle
import stat
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch

from engine.temporaries import is_temporary, temporary_name
from model.checkpoint import (
    CARD_FILE,
    MAX_CARD_BYTES,
    CardError,
    CheckpointError,
    DamagedFileError,
    EncodingMismatchError,
    NoCheckpointError,
    TensorMismatchError,
    load,
    read_card,
    save,
    write_atomically,
)
from model.data.rows import load_rows
from model.inference.columns import NetworkOutputError
from model.inference.evaluator import NetworkEvaluator, evaluator
from model.network.device import OutOfMemoryError, convert_memory_errors
from model.network.network import build
from model.network.preset import Preset, preset_to_dict
from tests.model.synthetic import TINY, TINY_TANH, batch
from tests.processes import UNUSED_PID


class Killed(BaseException):
    """Stands for SIGKILL: no handler may catch it."""


def kill_before(patch: pytest.MonkeyPatch, operation: int) -> None:
    """Make renames, replacements and deletions raise Killed from number `operation` on."""
    numbers = itertools.count()

    def call_or_kill(real: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if next(numbers) >= operation:
            raise Killed
        return real(*args, **kwargs)

    for name in ("rename", "replace", "unlink"):
        patch.setattr(os, name, partial(call_or_kill, getattr(os, name)))


def make(directory: Path, row: Preset = TINY, seed: int = 3, step: int = 7) -> dict[str, Any]:
    """Save an untrained network as a finished checkpoint, and return its card."""
    directory.mkdir(parents=True, exist_ok=True)
    card: dict[str, Any] = {"preset": preset_to_dict(row), "parameters": 9, "step": step}
    card |= {"positions": 70, "seconds": 1.5, "finished": True, "metrics": {"loss": 1.5}}
    card |= {"config": {}, "data": {}}
    return save(directory, card, {"weights": build(row, seed).state_dict()})


def list_files(card: dict[str, Any]) -> set[str]:
    return {entry["name"] for entry in card["files"].values()}


def edit_card(directory: Path, **changes: object) -> None:
    card = json.loads((directory / CARD_FILE).read_text())
    (directory / CARD_FILE).write_text(json.dumps(card | changes))


def test_a_checkpoint_is_read_back_unchanged(tmp_path: Path) -> None:
    written = make(tmp_path)
    network, card = load(tmp_path)
    assert card == written == read_card(tmp_path)
    assert not network.training
    for name, tensor in build(TINY, 3).state_dict().items():
        assert torch.equal(network.state_dict()[name], tensor), name


def test_a_newer_save_leaves_no_older_files(tmp_path: Path) -> None:
    make(tmp_path, step=7)
    temporary = temporary_name("weights-9.safetensors").replace(
        f"-{os.getpid()}-", f"-{UNUSED_PID}-"
    )
    killed = {f"{kind}-{'0' * 16}.safetensors" for kind in ("weights-7", "training-9")}
    copies = {"weights-7.safetensors.bak", "weights-3.safetensors", "model.safetensors"}
    for name in (temporary, *killed, *copies):
        (tmp_path / name).write_bytes(b"from a killed save, or a user's copy")
    card = make(tmp_path, step=8)
    assert {path.name for path in tmp_path.iterdir()} == {CARD_FILE, *list_files(card), *copies}


@pytest.mark.parametrize("step", [7, 8])
def test_a_save_killed_at_any_operation_leaves_a_checkpoint_that_loads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    """The next save deletes all files of the killed one."""
    for kill_at in itertools.count():
        folder = tmp_path / str(kill_at)
        old, was_killed = make(folder, seed=3, step=7), True
        with monkeypatch.context() as patch, suppress(Killed):
            kill_before(patch, kill_at)
            make(folder, seed=4, step=step)
            was_killed = False
        network, card = load(folder)
        expected = build(TINY, seed=3 if card == old else 4)
        assert torch.equal(network.stem[0].weight, expected.stem[0].weight)  # type: ignore[arg-type]
        if not was_killed:
            break
        card = make(folder, seed=5, step=9)
        # temporary files are deleted once their process has ended
        kept = {path.name for path in folder.iterdir() if not is_temporary(path.name)}
        assert kept == {CARD_FILE, *list_files(card)}
    assert kill_at >= 3, "operations on the weights, the card, and the older weights"


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"format_version": 2}', '{"format_version": 1}', "[" * 100_000]
)
def test_files_that_are_not_cards_are_refused(tmp_path: Path, text: str) -> None:
    for folder in (tmp_path / "absent", tmp_path):
        with pytest.raises(NoCheckpointError, match="holds no checkpoint"):
            load(folder)
    (tmp_path / CARD_FILE).write_text(text)
    with pytest.raises(CardError):
        load(tmp_path)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"preset": preset_to_dict(TINY) | {"width": 10**9}}, CardError),
        ({"preset": preset_to_dict(TINY) | {"blocks": 4096}}, CardError),
        ({"preset": preset_to_dict(TINY) | {"view": "no"}}, CardError),
        ({"preset": preset_to_dict(TINY) | {"moves": "no"}}, CardError),
        ({"step": "7"}, CardError),
        ({"data": {"datasets": [{"name": 7}]}}, CardError),
        ({"calibration": {"factor": 0.0, "value_brier_before": 0, "value_brier": 0}}, CardError),
        ({"encoding_version": 99}, EncodingMismatchError),
        ({"moves_hash": "0" * 16}, EncodingMismatchError),
        # sizes are compared before memory is allocated
        ({"preset": preset_to_dict(TINY) | {"width": 4096, "blocks": 100}}, TensorMismatchError),
        ({"files": {"weights": {"name": "../weights-7.safetensors"}}}, DamagedFileError),
        ({"files": {"weights": {"name": "weights-7.safetensors/.."}}}, DamagedFileError),
        ({"files": {"weights": {"name": None, "sha256": ""}}}, DamagedFileError),
    ],
    ids=str,
)
def test_invalid_fields_of_a_card_are_refused(
    tmp_path: Path, change: dict[str, object], error: type[Exception]
) -> None:
    make(tmp_path)
    edit_card(tmp_path, **change)
    with pytest.raises(error, match=str(tmp_path)):
        load(tmp_path)


def test_oversized_files_are_not_read(tmp_path: Path) -> None:
    make(tmp_path)
    os.truncate(next(tmp_path.glob("weights-*")), 1 << 40)
    with pytest.raises(DamagedFileError, match="too large for its preset"):
        load(tmp_path)
    os.truncate(tmp_path / CARD_FILE, MAX_CARD_BYTES + 1)
    with pytest.raises(CardError, match="is larger than 4 MiB"):
        read_card(tmp_path)


class Exploit:
    def __reduce__(self) -> Any:
        return (Path.touch, (Path("exploited"),))


@pytest.mark.parametrize(
    "data", [None, b"", pickle.dumps(Exploit()), safetensors.torch.save({})[:4]], ids=repr
)
def test_a_file_that_is_not_safetensors_is_refused_without_running_code(
    tmp_path: Path, data: bytes | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    entry = make(tmp_path)["files"]["weights"]
    if data is None:
        (tmp_path / entry["name"]).unlink()
    else:
        (tmp_path / entry["name"]).write_bytes(data)
        sha256 = hashlib.sha256(data).hexdigest()
        edit_card(tmp_path, files={"weights": entry | {"sha256": sha256}})
    with pytest.raises(DamagedFileError, match=r"not a safetensors file|cannot be read"):
        load(tmp_path)
    assert not Path("exploited").exists()


def test_a_rename_is_synced_to_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced = []

    def fsync(descriptor: int) -> None:
        synced.append((stat.S_ISDIR(os.fstat(descriptor).st_mode), (tmp_path / "x").exists()))

    monkeypatch.setattr(os, "fsync", fsync)
    write_atomically(tmp_path / "x", b"data")
    assert synced == [(False, False), (True, True)]
    with pytest.raises(CheckpointError, match="cannot be written"):
        write_atomically(tmp_path / "no such directory" / "x", b"")


@pytest.mark.parametrize("row", [TINY, TINY_TANH], ids=lambda row: row.name)
def test_an_evaluator_returns_the_networks_outputs_in_batches_of_any_size(
    tmp_path: Path, row: Preset, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(tmp_path, row)
    data, evaluate = batch(9), evaluator(tmp_path, device="cpu", amp="off")
    logits, wdl = evaluate(data["planes"])
    assert logits.dtype == wdl.dtype == np.float32
    assert wdl.sum(1) == pytest.approx(np.ones(9))
    with torch.inference_mode():
        prediction = load(tmp_path)[0](load_rows(row, data, torch.device("cpu")))
    assert np.array_equal(logits, prediction.logits.numpy())
    assert np.array_equal(wdl, prediction.wdl.exp().numpy())
    monkeypatch.setattr("model.inference.columns.MAX_BATCH_ROWS", 2)
    small_batches = evaluate(data["planes"])
    assert np.allclose(logits, small_batches[0], atol=1e-5)
    assert np.allclose(wdl, small_batches[1], atol=1e-6)
    assert [output.shape for output in evaluate(data["planes"][:0])] == [(0, 4096), (0, 3)]


def test_an_evaluator_raises_clear_errors_for_nan_and_without_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    network = build(TINY, 3).eval()
    with torch.no_grad():
        for weight in network.parameters():
            weight.fill_(3e38)  # finite, but the network's outputs are not
    evaluate = NetworkEvaluator(network, device="cpu", amp="off")
    with pytest.raises(NetworkOutputError, match="the network tiny returned NaN or infinity"):
        evaluate(batch(3)["planes"])
    monkeypatch.setattr(network, "forward", lambda *_: torch.empty(1 << 60, dtype=torch.uint8))
    with pytest.raises(OutOfMemoryError, match=r"not enough memory for evaluating 3 positions"):
        evaluate(batch(3)["planes"])


class PanicException(BaseException):
    """Has the name of safetensors' exception, which cannot be imported."""


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
def test_failed_allocations_are_recognized(
    raised: BaseException, caught: type[BaseException]
) -> None:
    with pytest.raises(caught) as found, convert_memory_errors("work", "free some"):
        raise raised
    assert ("not enough memory for work" in str(found.value)) == (caught is OutOfMemoryError)
