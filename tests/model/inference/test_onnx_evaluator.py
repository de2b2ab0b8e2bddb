"""Exported networks: damaged files are refused before they run, and so are outputs that are not
finite."""

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from model.card import CARD_FILE, ONNX_FILE
from model.data.playouts import playout_rows
from model.inference.columns import NetworkOutputError, check_outputs
from model.inference.onnx_evaluator import OnnxError, find_export, open_export
from tests.conftest import REPOSITORY

pytest.importorskip("onnxruntime", reason="the extra `onnx` is not installed")

EMBEDDED_CHECKPOINT = REPOSITORY / "datasets" / "embedded"


@pytest.fixture
def net(tmp_path: Path) -> Path:
    """Copy the embedded network's card and export; nothing here reads its weights."""
    for name in (CARD_FILE, ONNX_FILE):
        shutil.copy(EMBEDDED_CHECKPOINT / name, tmp_path / name)
    return tmp_path


def edit_files(net: Path, **entries: Any) -> None:
    card = json.loads((net / CARD_FILE).read_text())
    card["files"] |= entries
    (net / CARD_FILE).write_text(json.dumps(card))


def record_hash(net: Path) -> None:
    """Record the hash of the present file in the card."""
    data = (net / ONNX_FILE).read_bytes()
    edit_files(
        net,
        onnx={"name": ONNX_FILE, "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()},
    )


def flip_eight_bits(path: Path, seed: int) -> None:
    random, data = np.random.default_rng(seed), bytearray(path.read_bytes())
    for at in random.choice(len(data), 8, replace=False):
        data[at] ^= 1 << int(random.integers(8))
    path.write_bytes(data)


def test_a_file_with_flipped_bits_is_not_run(net: Path) -> None:
    flip_eight_bits(net / ONNX_FILE, 0)
    for open_network in (find_export, open_export):
        with pytest.raises(OnnxError, match=r"model\.onnx does not match its hash"):
            open_network(net)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_a_file_damaged_before_its_hash_was_recorded_fails_in_one_line(
    net: Path, seed: int
) -> None:
    """If the file still runs, its outputs are finite."""
    flip_eight_bits(net / ONNX_FILE, seed)
    record_hash(net)
    outputs, message = [], ""
    try:
        outputs = list(open_export(net)(playout_rows(4)["planes"]))
    except (OnnxError, NetworkOutputError) as error:
        message = str(error)
    assert "\n" not in message
    assert all(np.isfinite(output).all() for output in outputs)


def test_a_file_that_the_card_does_not_list_is_not_run(net: Path) -> None:
    card = json.loads((net / CARD_FILE).read_text())
    del card["files"]["onnx"]
    (net / CARD_FILE).write_text(json.dumps(card))
    assert find_export(net) is None
    with pytest.raises(
        OnnxError, match=r"lists no model\.onnx .*; create it with `fianchetto export"
    ):
        open_export(net)


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        *(({"onnx": entry}, r"checkpoint\.json") for entry in (None, {}, {"name": ONNX_FILE})),
        (
            {"weights": {"name": "weights-1.safetensors", "sha256": "0" * 64}},
            "not exported from the weights",
        ),
    ],
)
def test_a_wrong_entry_is_refused(net: Path, entries: Any, words: str) -> None:
    edit_files(net, **entries)
    with pytest.raises(OnnxError, match=words):
        find_export(net)


def test_a_network_that_returns_nan_is_refused(net: Path) -> None:
    onnx = pytest.importorskip("onnx", reason="the extra `onnx` is not installed")
    model, name = onnx.load(net / ONNX_FILE), "network.policy.0.layer.bias"
    bias = next(array for array in model.graph.initializer if array.name == name)
    nan = np.full(list(bias.dims), np.nan, np.float32)
    bias.CopyFrom(onnx.numpy_helper.from_array(nan, name))
    onnx.save(model, net / ONNX_FILE)
    record_hash(net)
    network = open_export(net)
    with pytest.raises(NetworkOutputError, match=r"model\.onnx returned NaN or infinity"):
        network(playout_rows(2)["planes"])


@pytest.mark.parametrize(
    ("legal", "illegal", "wdl"),
    [
        (-np.inf, 0.0, 0.3),
        (np.nan, 0.0, 0.3),
        (0.0, np.inf, 0.3),
        (0.0, np.nan, 0.3),
        (0.0, 0.0, np.nan),
    ],
)
def test_only_illegal_moves_may_have_minus_infinity(
    legal: float, illegal: float, wdl: float
) -> None:
    rows, logits = playout_rows(1), np.zeros((1, 4096), np.float32)
    logits[0, 4095] = -np.inf  # a knight's move off the board
    check_outputs((logits, np.full((1, 3), 0.3, np.float32)), rows["planes"], "x")
    logits[0, int(rows["label"][0])], logits[0, 4095] = legal, illegal
    with pytest.raises(NetworkOutputError):
        check_outputs((logits, np.full((1, 3), wdl, np.float32)), rows["planes"], "x")
    wide = np.zeros((1, 4672), np.float32), np.zeros((1, 3), np.float32)
    with pytest.raises(NetworkOutputError, match=r"shapes \(1, 4672\)"):
        check_outputs(wide, rows["planes"], "x")
