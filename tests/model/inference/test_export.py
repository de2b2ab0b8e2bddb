"""Exported networks: the same answers as the checkpoint's, whatever the batch, and nothing
published that differs."""

import hashlib
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from engine.board.movegen import MOVE_PLANES
from engine.board.position import KING
from engine.encoding.planes import legal_mask
from engine.encoding.views import LAST_MOVES
from engine.progress import silent
from model.card import CARD, ONNX
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
from model.inference.columns import Answer, Rows
from model.inference.evaluator import evaluator
from model.network.preset import Preset
from model.training.config import TrainConfig
from model.training.loop import train
from tests import forked
from tests.conftest import REPOSITORY
from tests.model.synthetic import TINY, batch
from tests.waiting import drop_slow_lines

pytest.importorskip("onnx", reason="the extra `onnx` is not installed")
pytest.importorskip("onnxscript", reason="the extra `onnx` is not installed")
pytest.importorskip("onnxruntime", reason="the extra `onnx` is not installed")

from model.inference import export as exporting
from model.inference.export import ExportError, export
from model.inference.onnx_evaluator import OnnxError, OnnxEvaluator, find_export

Exported = tuple[dict[str, Any], list[list[int]]]
"""What was said, and of each report of progress how much was done of how much."""
OTHER = replace(
    TINY,
    name="tiny-other",
    view="planes19",
    moves="az4672",
    block="pre",
    activation="mish",
    gate="scale",
    value="tanh",
    condition="ratings",
    condition_width=4,
)
TOLD = replace(
    TINY,
    name="tiny-told",
    view="marro13+last2+attacks",
    move_features_width=8,
    condition="ratings",
    condition_width=4,
)
FACTORED = replace(
    TINY, name="tiny-factored", view="planes18", moves="factored", policy="factored", value="none"
)
PRESETS = (TINY, TOLD, OTHER, FACTORED)
INTEGERS = "tiny-told in integers"


def checkpoint(out: Path, preset: Preset, steps: int = 3) -> Path:
    rows = batch(16) | {
        "promotion": np.zeros(16, np.uint8),
        "game": np.arange(16, dtype=np.uint32),
        **{
            name: np.zeros(16, np.uint16)
            for name in ("castling", "ep_file", "halfmove", "repetition", "ply")
        },
        **{name: np.full(16, 1500, np.uint16) for name in ("elo", "opponent_elo")},
        **{name: np.full(16, 65535, np.uint16) for name in LAST_MOVES},
    }
    if preset.moves != "marro4096" or preset.move_features_width:
        rows |= legal_rows()
    config = TrainConfig(
        steps=steps, batch_size=16, threads=1, amp="off", device="cpu", learning_rate=0.02
    )
    train(
        config,
        preset,
        lambda step: iter([rows] * 99),
        out,
        validation=None,
        data={},
        progress=silent,
        stop=lambda: False,
    )
    return out


CHILD = """
import contextlib, io, json, sys
from dataclasses import astuple
from pathlib import Path
from model.data.playouts import playout_rows
from model.inference.export import export
from pipeline.__main__ import main

nets = json.loads(sys.argv.pop(1))
try:
    main()
finally:
    for net in map(Path, nets):
        ticks = []
        said = export(net, None, playout_rows(300), progress=ticks.append)
        heard = [astuple(tick)[:2] for tick in ticks]
        (net.parent / "said.json").write_text(json.dumps([said, heard]))
    told = Path(sys.argv[sys.argv.index("--checkpoint") + 1])
    out = str(told.parent / "int8" / "net.onnx")
    sys.argv[1:] = ["export", "--checkpoint", str(told), "--int8", "--out", out, "--json"]
    with contextlib.redirect_stdout(io.StringIO()) as printed, contextlib.suppress(SystemExit):
        main()
    (told.parent / "int8.json").write_text(printed.getvalue())
"""


@pytest.fixture(scope="module")
def exports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Exported]:
    """Export a trained network of each preset; give what `export` said, and its progress.

    All in one process of its own, the first by the command: the exporter takes seconds to import,
    and what torch says would be seen there: nothing but the result.
    """
    nets = {
        preset.name: checkpoint(tmp_path_factory.mktemp("exports") / "net", preset)
        for preset in PRESETS
    }
    told = nets.pop(TOLD.name)
    out = told.parent / "other" / "net.onnx"
    words = ["export", "--checkpoint", str(told), "--out", str(out), "--json"]
    command = [sys.executable, "-c", CHILD, json.dumps([*map(str, nets.values())]), *words]
    done = forked.run(command, cwd=REPOSITORY, capture_output=True, text=True)
    assert (done.returncode, drop_slow_lines(done.stderr)) == (0, "")
    result: dict[str, Any] = json.loads(done.stdout)
    assert out.stat().st_size == result["bytes"]
    assert result["positions"] == 1000
    found: dict[str, Exported] = {
        name: tuple(json.loads((net.parent / "said.json").read_text()))
        for name, net in nets.items()
    }
    integers: Exported = (json.loads((told.parent / "int8.json").read_text()), [])
    return found | {
        TOLD.name: (result | {"out": shutil.copy(out, told / ONNX)}, []),
        INTEGERS: integers,
    }


def _noted(run: Callable[[Rows], Answer], worked: list[int], rows: Rows) -> Answer:
    """Evaluate, and note how many rows that was."""
    worked.append(len(rows["planes"]))
    return run(rows)


def legal_rows() -> dict[str, np.ndarray]:
    """Give sixteen real positions with their lowest legal label each: other vocabularies know no
    move off the board."""
    planes = playout_rows(16)["planes"]
    return {"planes": planes, "label": legal_mask(planes).argmax(1).astype(np.uint16)}


@pytest.mark.parametrize("preset", PRESETS, ids=lambda row: row.name)
def test_the_exported_network_answers_as_the_checkpoint(
    exports: dict[str, Exported], preset: Preset, monkeypatch: pytest.MonkeyPatch
) -> None:
    said, ticks = exports[preset.name]
    net = Path(said["out"]).parent
    assert str(REPOSITORY).encode() not in Path(said["out"]).read_bytes(), (
        "stack traces would show a user's folders"
    )
    if preset is TOLD:
        assert said["positions"] == 1000, "as the command does"
    else:
        assert ticks == [[0, 1], [1, 1], [0, 300], [300, 300]]
        assert said["positions"] == 300
    assert 0 <= said["largest_policy_difference"] < 1e-4
    assert 0 <= said["largest_value_difference"] < 1e-4
    one, other = OnnxEvaluator(Path(said["out"])), evaluator(net, device="cpu", amp="off")
    planes = playout_rows(40, seed=7)["planes"]
    legal = legal_mask(planes)
    for rows in (0, 1, 2, 40):
        found, wanted = one(planes[:rows]), other(planes[:rows])
        assert found[0].shape == (rows, 4096)
        assert found[1].shape == (rows, 3)
        assert found[0].dtype == found[1].dtype == np.float32
        assert np.allclose(found[0][legal[:rows]], wanted[0][legal[:rows]], atol=1e-4)
        assert np.allclose(found[1], wanted[1], atol=1e-5)
    if preset is TOLD:
        last = planes[:2].copy()
        last[:, MOVE_PLANES:] = 0
        last[1, MOVE_PLANES] = last[1, KING]  # no move, and one
        assert np.allclose(one(last)[1], other(last)[1], atol=1e-5)
        assert np.allclose(one(last[:1])[1], other(last[:1])[1], atol=1e-5)
        many = OnnxEvaluator(Path(said["out"]), threads=4)
        assert many.session.get_session_options().intra_op_num_threads == 1
        for rows in (1, 2, 3, 40):
            worked: list[int] = []
            monkeypatch.setattr(
                many, "_on_one_thread", partial(_noted, many._on_one_thread, worked)
            )
            alone, shared = one(planes[:rows]), many(planes[:rows])
            assert (len(worked), sum(worked)) == (max(1, min(rows // 2, 4)), rows), (
                "two rows or more each"
            )
            monkeypatch.undo()
            assert np.allclose(shared[0][legal[:rows]], alone[0][legal[:rows]], atol=1e-5)
            assert np.allclose(shared[1], alone[1], atol=1e-5)
        assert OnnxEvaluator(Path(said["out"])).card["move_features_version"] == 1
    if preset.condition != "none":
        known = {"elo": np.full(40, 2400), "opponent_elo": np.full(40, 900)}
        told, wanted = one(planes, known), other(planes, known)
        assert np.allclose(told[0][legal], wanted[0][legal], atol=1e-4)
        assert not np.allclose(told[0][legal], one(planes)[0][legal], atol=1e-4)
        columns = {"halfmove": np.full(40, 90), "elo": np.full(40, 2000)}
        assert np.allclose(
            one(planes, columns)[0][legal], other(planes, columns)[0][legal], atol=1e-4
        )


def test_a_network_in_integers_answers_nearly_as_the_checkpoint(
    exports: dict[str, Exported],
) -> None:
    import onnx

    said, _ = exports[INTEGERS]
    net, path = Path(exports[TOLD.name][0]["out"]).parent, Path(said["out"])
    assert said["arithmetic"] == "int8"
    graph = onnx.load(path).graph
    scaled = {node.output[0] for node in graph.node if node.op_type == "DequantizeLinear"}
    convolutions = [node for node in graph.node if node.op_type == "Conv"]
    assert [node.input[1] for node in convolutions if not set(node.input[:2]) <= scaled] == [
        "network.stem.0.weight",
        "network.policy.0.layer.weight",
    ], "the first layer and logits stay exact"
    assert len(convolutions) > 5
    one, other = OnnxEvaluator(path), evaluator(net, device="cpu", amp="off")
    assert one.card == OnnxEvaluator(net / ONNX).card | {"arithmetic": "int8"}
    planes = playout_rows(200, seed=7)["planes"]
    legal, (found, wanted) = torch.from_numpy(legal_mask(planes)), (one(planes), other(planes))
    mine, theirs = (
        torch.from_numpy(logits).masked_fill(~legal, -1e9).log_softmax(1)
        for logits, _ in (found, wanted)
    )
    assert 0 < float(F.kl_div(mine, theirs, log_target=True, reduction="batchmean")) < 0.01
    assert 0 < float(np.abs(found[1] - wanted[1]).max()) < 0.1
    assert 0 < said["policy_divergence"] < 0.01
    assert 0 < said["score_difference"] < 0.03


def test_the_same_rows_give_the_same_integers(
    tmp_path: Path, exports: dict[str, Exported], monkeypatch: pytest.MonkeyPatch
) -> None:
    net = Path(exports[TINY.name][0]["out"]).parent
    monkeypatch.setattr(
        exporting, "_graph", lambda network, card, path: shutil.copy(net / ONNX, path)
    )
    outs = [tmp_path / "one.onnx", tmp_path / "two.onnx"]
    for out in outs:
        export(net, out, playout_rows(20), calibration=playout_rows(70, seed=1))
    one, two = (out.read_bytes() for out in outs)
    assert one == two


def test_integers_that_differ_too_much_are_not_published(
    tmp_path: Path, exports: dict[str, Exported], monkeypatch: pytest.MonkeyPatch
) -> None:
    net = Path(exports[TINY.name][0]["out"]).parent
    monkeypatch.setattr(
        exporting, "_graph", lambda network, card, path: shutil.copy(net / ONNX, path)
    )
    monkeypatch.setattr(exporting, "INT8_VALUE", 0.0)
    with pytest.raises(
        ExportError, match=r"the expected score by .* \(at most 0\.0\): export it without"
    ):
        export(net, tmp_path / "net.onnx", playout_rows(20), calibration=playout_rows(70, seed=1))
    assert not list(tmp_path.iterdir())


def test_what_differs_is_not_published(
    tmp_path: Path, exports: dict[str, Exported], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The graph is that of other weights."""
    other, net = Path(exports[TINY.name][0]["out"]), checkpoint(tmp_path / "net", TINY, steps=6)
    monkeypatch.setattr(exporting, "_graph", lambda network, card, path: shutil.copy(other, path))
    with pytest.raises(ExportError, match=r"differs from .* by .*, more than 0\.001"):
        export(net, None, playout_rows(20))
    assert not (net / ONNX).exists()


def test_players_take_the_export_only_while_it_is_of_these_weights(
    tmp_path: Path, exports: dict[str, Exported]
) -> None:
    said, _ = exports[TINY.name]
    net = Path(shutil.copytree(Path(said["out"]).parent, tmp_path / "net"))
    (net / ONNX).rename(tmp_path / ONNX)
    assert find_export(net) is None
    (tmp_path / ONNX).rename(net / ONNX)
    quick = find_export(net)
    assert quick is not None
    assert quick.card["step"] == 3
    code = (
        "import sys; from pathlib import Path; from model.inference.onnx_evaluator import "
        "find_export; "
    )
    code += "assert find_export(Path(sys.argv[1])); print('torch' in sys.modules)"
    ran = subprocess.run(
        [sys.executable, "-c", code, str(net)],
        capture_output=True,
        text=True,
        cwd=REPOSITORY,
        check=True,
    )
    assert ran.stdout == "False\n"
    network, card = load(net)
    save(net, card | {"step": 4}, {"weights": network.state_dict()})
    assert find_export(net) is None, "the card of other weights names no export"


def test_an_export_is_recorded_for_the_weights_that_it_was_made_of(tmp_path: Path) -> None:
    net = checkpoint(tmp_path / "net", TINY)
    card = json.loads((net / CARD).read_text())
    weights = card["files"]["weights"]["sha256"]
    save_export(net, weights, b"graph")
    recorded = json.loads((net / CARD).read_text())
    assert recorded["files"].pop("onnx") == {
        "name": ONNX,
        "bytes": 5,
        "sha256": hashlib.sha256(b"graph").hexdigest(),
    }
    assert recorded == card
    with pytest.raises(CheckpointError, match="was saved anew while"):
        save_export(net, "0" * 64, b"other")
    with lock_directory(net), pytest.raises(CheckpointBusyError):
        save_export(net, weights, b"other")
    assert (net / ONNX).read_bytes() == b"graph"


def test_an_export_killed_while_it_is_published_leaves_a_checkpoint_without_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    net = checkpoint(tmp_path / "net", TINY)
    weights = load(net)[1]["files"]["weights"]["sha256"]
    save_export(net, weights, b"graph")
    published: list[str] = []

    def killed(path: Path, data: bytes) -> None:
        published.append(path.name)
        if path.name == ONNX:
            raise KeyboardInterrupt
        write_atomically(path, data)

    monkeypatch.setattr("model.checkpoint.write_atomically", killed)
    with pytest.raises(KeyboardInterrupt):
        save_export(net, weights, b"other")
    assert published == [CARD, ONNX]
    assert find_export(net) is None


def test_files_that_are_no_export_are_named(tmp_path: Path) -> None:
    with pytest.raises(OnnxError, match="absent"):
        OnnxEvaluator(tmp_path / "absent.onnx")
    (tmp_path / "text.onnx").write_text("hello")
    with pytest.raises(OnnxError, match=r"text\.onnx cannot be opened"):
        OnnxEvaluator(tmp_path / "text.onnx")
    import onnx
    from onnx import TensorProto, helper

    value = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1])
    done = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1])
    graph = helper.make_graph([helper.make_node("Abs", ["x"], ["y"])], "other", [value], [done])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    onnx.save(model, tmp_path / "other.onnx")
    with pytest.raises(OnnxError, match="was not written by `fianchetto export`"):
        OnnxEvaluator(tmp_path / "other.onnx")
