"""Exported networks: outputs equal the checkpoint's in batches of any size, and a network that
differs is not published."""

import hashlib
import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from engine.board.movegen import MOVE_PLANES
from engine.board.position import KING
from engine.encoding.planes import legal_mask
from engine.progress import Tick
from model.card import CARD_FILE, ONNX_FILE
from model.checkpoint import (
    CheckpointBusyError,
    CheckpointError,
    load,
    lock_directory,
    save,
    save_export,
    write_atomically,
)
from model.data.playouts import playout_rows
from model.inference.evaluator import evaluator
from model.network.network import build
from model.network.preset import Preset
from tests import forked
from tests.conftest import REPOSITORY
from tests.model.synthetic import ATTENTION, TINY, perturb
from tests.model.test_checkpoint import make
from tests.waiting import drop_slow_lines

pytest.importorskip("onnx", reason="the extra `onnx` is not installed")
pytest.importorskip("onnxscript", reason="the extra `onnx` is not installed")
pytest.importorskip("onnxruntime", reason="the extra `onnx` is not installed")

from model.inference import export as exporting
from model.inference.export import ExportError, export
from model.inference.onnx_evaluator import OnnxError, OnnxEvaluator, find_export

FEATURED = replace(
    TINY,
    name="tiny-featured",
    view="marro13+last2+attacks",
    move_features_width=8,
    condition="ratings",
    condition_width=4,
)
OTHER = replace(
    FEATURED,
    name="tiny-other",
    view="planes19",
    moves="az4672",
    block="pre",
    activation="mish",
    gate="scale",
    value="tanh",
    move_features_width=0,
)
FACTORED = replace(
    TINY, name="tiny-factored", view="planes18", moves="factored", policy="factored", value="none"
)


def checkpoint(out: Path, preset: Preset, seed: int = 3) -> Path:
    """Save a network in which no layer is zero."""
    make(out, preset)
    network, card = load(out)
    perturb(network, 0.1, seed)
    save(out, card, {"weights": network.state_dict()})
    return out


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Export a network by the command, which must print only the result, and return the file.

    It runs in a process of its own, because the exporter takes seconds to import.
    """
    folder = tmp_path_factory.mktemp("exports")
    net, out = checkpoint(folder / "net", FEATURED), folder / "elsewhere" / "net.onnx"
    words = ["export", "--checkpoint", str(net), "--out", str(out), "--json"]
    command = [sys.executable, "-m", "pipeline", *words]
    done = forked.run(command, cwd=REPOSITORY, text=True)
    assert (done.returncode, drop_slow_lines(done.stderr)) == (0, "")
    found = json.loads(done.stdout)
    assert (found["bytes"], found["positions"]) == (out.stat().st_size, 1000)
    assert 0 <= found["largest_policy_difference"] < 1e-4
    assert 0 <= found["largest_value_difference"] < 1e-4
    return out


@pytest.fixture
def net(traced: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a copy of the checkpoint; `export` copies the traced graph instead of tracing it."""
    monkeypatch.setattr(exporting, "_write_graph", lambda *given: shutil.copy(traced, given[-1]))
    return Path(shutil.copytree(traced.parents[1] / "net", tmp_path / "net"))


@pytest.fixture(scope="module")
def integers(traced: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Export the traced graph in 8-bit integers, and return the result of `export`."""
    out, ticks = tmp_path_factory.mktemp("integers") / "net.onnx", list[Tick]()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exporting, "_write_graph", lambda *given: shutil.copy(traced, given[-1]))
        options: dict[str, Any] = {"calibration": playout_rows(128, seed=1)}
        options["progress"] = ticks.append
        result = export(traced.parents[1] / "net", out, playout_rows(200), **options)
    assert [(tick.done, tick.total) for tick in ticks] == [(0, 1), (0, 1), (0, 200), (200, 200)]
    return result


def assert_equal_outputs(one: Any, other: Any, planes: np.ndarray, columns: Any = None) -> None:
    legal, found, expected = legal_mask(planes), one(planes, columns), other(planes, columns)
    assert (found[0].shape, found[1].shape) == ((len(planes), 4096), (len(planes), 3))
    assert found[0].dtype == found[1].dtype == np.float32
    assert np.allclose(found[0][legal], expected[0][legal], atol=1e-4)
    assert np.allclose(found[1], expected[1], atol=1e-5)


def assert_equals_checkpoint(path: Path, directory: Path) -> None:
    """Compare a file with its checkpoint on batches of several sizes, with and without columns."""
    exported, reference = OnnxEvaluator(path), evaluator(directory, device="cpu", amp="off")
    planes = playout_rows(40, seed=7)["planes"]
    for rows in (0, 1, 2, 40):
        assert_equal_outputs(exported, reference, planes[:rows])
    columns = {"elo": np.full(40, 2400), "opponent_elo": np.full(40, 900)}
    columns["halfmove"] = np.full(40, 90)
    assert_equal_outputs(exported, reference, planes, columns)
    legal, reads_columns = legal_mask(planes), not exported.columns.keys().isdisjoint(columns)
    with_columns = exported(planes, columns)[0][legal]
    assert np.allclose(with_columns, exported(planes)[0][legal], atol=1e-4) != reads_columns


def test_the_exported_network_equals_the_checkpoint(traced: Path, net: Path) -> None:
    assert str(REPOSITORY).encode() not in traced.read_bytes(), "stack traces show a user's folders"
    assert_equals_checkpoint(traced, net)


@pytest.mark.slow
@pytest.mark.parametrize("preset", [OTHER, TINY, FACTORED, ATTENTION], ids=lambda row: row.name)
def test_networks_with_other_parts_are_exported(tmp_path: Path, preset: Preset) -> None:
    net = checkpoint(tmp_path / "net", preset)
    export(net, None, playout_rows(300))
    assert_equals_checkpoint(net / ONNX_FILE, net)


@pytest.mark.slow
def test_attention_in_integers_is_close_to_the_checkpoint(tmp_path: Path) -> None:
    import onnx

    net, out = checkpoint(tmp_path / "net", ATTENTION), tmp_path / "net.onnx"
    result = export(net, out, playout_rows(200), calibration=playout_rows(128, seed=1))
    graph = onnx.load(out).graph
    quantized = {node.output[0] for node in graph.node if node.op_type == "DequantizeLinear"}
    products = [node for node in graph.node if node.op_type == "MatMul"]
    is_quantized = [set(node.input) <= quantized for node in products]
    # query, key, value, output and two layers of the feed-forward network, in each of two blocks
    assert (is_quantized.count(True), is_quantized.count(False)) == (12, 4)
    assert 0 < result["policy_divergence"] < 0.01
    assert 0 < result["score_difference"] < 0.03


def test_threads_share_the_rows_of_a_batch(
    traced: Path, net: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each thread gets two rows or more, also if positions have no legal move or one."""
    planes = playout_rows(40, seed=7)["planes"]
    planes[:2, MOVE_PLANES:] = 0
    planes[1, MOVE_PLANES] = planes[1, KING]
    single, threaded = OnnxEvaluator(traced), OnnxEvaluator(traced, threads=4)
    assert_equal_outputs(single, evaluator(net, device="cpu", amp="off"), planes)
    run_session, counts = threaded._run_session, list[int]()

    def count_rows(rows: dict[str, Any]) -> Any:
        counts.append(len(rows["planes"]))
        return run_session(rows)

    monkeypatch.setattr(threaded, "_run_session", count_rows)
    for rows in (1, 2, 3, 40):
        counts.clear()
        assert_equal_outputs(threaded, single, planes[:rows])
        assert (len(counts), sum(counts)) == (max(1, min(rows // 2, 4)), rows)


def test_a_session_is_opened_once_for_a_network_with_move_features(
    traced: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import onnxruntime

    opened, session = list[Any](), onnxruntime.InferenceSession

    def open_session(*args: Any, **kwargs: Any) -> Any:
        opened.append(args)
        return session(*args, **kwargs)

    monkeypatch.setattr(onnxruntime, "InferenceSession", open_session)
    OnnxEvaluator(traced, threads=4)
    assert len(opened) == 1


def test_a_network_in_integers_is_close_to_the_checkpoint(
    net: Path, integers: dict[str, Any]
) -> None:
    import onnx

    path = Path(integers["out"])
    assert integers["arithmetic"] == "int8"
    graph = onnx.load(path).graph
    quantized = {node.output[0] for node in graph.node if node.op_type == "DequantizeLinear"}
    convolutions = [node for node in graph.node if node.op_type == "Conv"]
    unquantized = [node.input[1] for node in convolutions if not set(node.input[:2]) <= quantized]
    assert unquantized == ["network.stem.0.weight", "network.policy.0.layer.weight"]
    assert len(convolutions) > 5
    planes = playout_rows(200, seed=7)["planes"]
    evaluators = (OnnxEvaluator(path), evaluator(net, device="cpu", amp="off"))
    (logits, wdl), (expected_logits, expected_wdl) = (evaluate(planes) for evaluate in evaluators)
    illegal = torch.from_numpy(~legal_mask(planes))
    policy, expected_policy = (
        torch.from_numpy(output).masked_fill(illegal, -1e9).log_softmax(1)
        for output in (logits, expected_logits)
    )
    divergence = F.kl_div(policy, expected_policy, log_target=True, reduction="batchmean")
    assert 0 < float(divergence) < 0.01
    assert 0 < float(np.abs(wdl - expected_wdl).max()) < 0.1
    assert 0 < integers["policy_divergence"] < 0.01
    assert 0 < integers["score_difference"] < 0.03


@pytest.mark.slow
def test_the_same_rows_give_the_same_integers(tmp_path: Path, net: Path) -> None:
    outs = [tmp_path / "one.onnx", tmp_path / "two.onnx"]
    for out in outs:
        export(net, out, playout_rows(20), calibration=playout_rows(70, seed=1))
    assert outs[0].read_bytes() == outs[1].read_bytes()


def test_a_network_that_differs_is_not_published(
    tmp_path: Path, net: Path, integers: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The graph has other weights, in float32 and in integers."""
    other, rows = checkpoint(tmp_path / "other", FEATURED, seed=4), playout_rows(20)
    monkeypatch.setattr(exporting, "_quantize_graph", lambda *_: Path(integers["out"]))
    with pytest.raises(ExportError, match=r"differs from .* by .*, more than 0\.001"):
        export(other, None, rows)
    with pytest.raises(ExportError, match=r"in 8-bit integers: .*; export it without --int8"):
        export(other, None, rows, calibration=rows)
    assert not (other / ONNX_FILE).exists()


def test_players_use_the_export_only_with_the_weights_that_it_was_made_from(
    tmp_path: Path, net: Path
) -> None:
    export(net, None, playout_rows(20))
    exported = find_export(net)
    assert exported is not None
    assert exported.metadata["step"] == 7
    code = "import sys; from pathlib import Path; from model.inference.onnx_evaluator import *; "
    code += "assert find_export(Path(sys.argv[1])); print('torch' in sys.modules)"
    words = [sys.executable, "-c", code, str(net)]
    ran = subprocess.run(words, capture_output=True, text=True, cwd=REPOSITORY, check=True)
    assert ran.stdout == "False\n"
    (net / ONNX_FILE).rename(tmp_path / ONNX_FILE)
    assert find_export(net) is None
    (tmp_path / ONNX_FILE).rename(net / ONNX_FILE)
    save(net, load(net)[1] | {"step": 8}, {"weights": build(FEATURED, 5).state_dict()})
    assert find_export(net) is None, "a new save removes the card's entry"


def test_an_export_is_recorded_in_the_card_and_may_be_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    net = tmp_path / "net"
    card = make(net)
    weights = card["files"]["weights"]["sha256"]
    save_export(net, weights, b"graph")
    recorded = json.loads((net / CARD_FILE).read_text())
    digest = hashlib.sha256(b"graph").hexdigest()
    assert recorded["files"].pop("onnx") == {"name": ONNX_FILE, "bytes": 5, "sha256": digest}
    assert recorded == card
    with pytest.raises(CheckpointError, match="has new weights"):
        save_export(net, "0" * 64, b"other")
    with lock_directory(net), pytest.raises(CheckpointBusyError):
        save_export(net, weights, b"other")
    assert (net / ONNX_FILE).read_bytes() == b"graph"

    def kill(path: Path, data: bytes) -> None:
        if path.name == ONNX_FILE:
            raise KeyboardInterrupt
        write_atomically(path, data)

    monkeypatch.setattr("model.checkpoint.write_atomically", kill)
    with pytest.raises(KeyboardInterrupt):
        save_export(net, weights, b"other")
    assert find_export(net) is None


def test_files_that_are_not_exports_are_refused_by_name(tmp_path: Path) -> None:
    import onnx
    from onnx import TensorProto, helper

    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Abs", ["x"], ["y"])], "other", [x], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    onnx.save(model, tmp_path / "other.onnx")
    (tmp_path / "text.onnx").write_text("hello")
    for name, words in (
        ("absent.onnx", r"absent\.onnx cannot be opened"),
        ("text.onnx", r"text\.onnx cannot be opened"),
        ("other.onnx", "was not written by `fianchetto export`"),
    ):
        with pytest.raises(OnnxError, match=words):
            OnnxEvaluator(tmp_path / name)
