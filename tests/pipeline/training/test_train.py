"""Training on datasets: inputs, lineage in the card, start checkpoints, exports."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import zstandard

import pipeline.training.train
from engine.evaluation.evaluator import uniform
from engine.jit_cache import NUMBA_CACHE_VARIABLE, has_compiled_kernels
from engine.player.player import warm_up
from engine.progress import Tick, silent
from model.checkpoint import load
from model.inference.evaluator import evaluator
from model.inference.export import ExportError
from model.network.preset import preset_from_dict
from model.network.presets import UnknownPresetError, preset
from model.training.config import TrainConfig
from pipeline.cli.commands.networks import Export
from pipeline.dataset.batches import Batches
from pipeline.dataset.join import JoinConfig, join
from pipeline.errors import ConfigError, DatasetError
from pipeline.evaluation.report import PositionFilter, report
from pipeline.ingest.chunk import IngestConfig
from pipeline.ingest.job import ingest
from pipeline.samples.shipped import EMBEDDED_CHECKPOINT
from pipeline.training import export
from pipeline.training.train import find_validation_datasets, train_on_datasets
from tests.conftest import REPOSITORY, shared_data
from tests.model.network.test_presets import small
from tests.pipeline.datasets import content
from tests.pipeline.selfplay.generations import make_dataset

STEPS = TrainConfig(steps=2, batch_size=8, threads=1)


@pytest.fixture(scope="module")
def positions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_dataset(tmp_path_factory.mktemp("training"), 12, test_share=0.2, val_share=0.3)


def test_datasets_without_a_validation_split_are_not_used_for_validation(
    positions: Path, tmp_path: Path
) -> None:
    config, unsplit = IngestConfig(test_share=0.0, val_share=0.0), tmp_path / "unsplit"
    ingest([str(positions.parent / "games.pgn")], unsplit, config, workers=1)
    (validated,) = find_validation_datasets([positions, unsplit], STEPS)
    assert validated.path == positions
    assert find_validation_datasets([unsplit], STEPS) == []


def test_an_export_falls_back_to_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    attempts: list[bool] = []

    def export_checkpoint(*_: object, int8: bool = False, **__: object) -> None:
        attempts.append(int8)
        if int8:
            raise ExportError("the policy is off by 0.2 nats")

    monkeypatch.setattr(export, "export_checkpoint", export_checkpoint)
    export.export_once(Path("nowhere"), (), silent)
    assert attempts == [True, False]


def test_the_card_identifies_data_by_hash_not_by_path(
    positions: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The progress of hashing new files has its own stage."""
    monkeypatch.setenv("FIANCHETTO_CACHE", str(tmp_path / "cache"))
    ticks: list[Tick] = []
    net = tmp_path / "net"
    card = train_on_datasets([positions], "fianchetto-xs", STEPS, net, progress=ticks.append)
    assert {tick.stage for tick in ticks if tick.unit == "B"} == {"checking hashes"}
    stored = json.loads((net / "checkpoint.json").read_text())
    (dataset,) = stored["data"]["datasets"]
    manifest = json.loads((positions / "manifest.json").read_text())
    assert dataset["sources"][0]["sha256"] == manifest["sources"][0]["sha256"]
    assert dataset["positions"] == manifest["positions"]
    assert str(positions.parent) not in json.dumps(stored)
    assert (card["step"], card["finished"]) == (2, True)
    assert "validation_top1" in card["metrics"]


def test_duplicate_datasets_are_refused(positions: Path, tmp_path: Path) -> None:
    joined, again = tmp_path / "set", positions.parent / "." / positions.name
    join([positions], joined, JoinConfig(hold_out="none"))
    for datasets, shares in (([positions, again], (0.5, 0.5)), ([joined, positions], ())):
        with pytest.raises(ConfigError, match="named twice"):
            train_on_datasets(datasets, "fianchetto-xs", STEPS, tmp_path / "net", shares=shares)


def test_runs_that_cannot_begin_are_refused(positions: Path, tmp_path: Path) -> None:
    huge = TrainConfig(steps=1, batch_size=100_000)
    net = tmp_path / "net"
    with pytest.raises(DatasetError, match="do not fill one batch of 100000: choose a smaller"):
        train_on_datasets([positions], "fianchetto-xs", huge, net)
    with pytest.raises(ConfigError, match="at least one dataset"):
        train_on_datasets([], "fianchetto-xs", STEPS, net)
    with pytest.raises(UnknownPresetError, match="did you mean 'chessmarro"):
        train_on_datasets([positions], "chesmarro", STEPS, net)
    assert not net.exists()


def run_with_own_cache(tmp_path: Path, *words: object) -> str:
    """Run a command with a kernel cache in `tmp_path`; return its standard error."""
    variables = os.environ | {NUMBA_CACHE_VARIABLE: str(tmp_path / "kernels")}
    command = [sys.executable, "-m", "pipeline", *map(str, words)]
    done = subprocess.run(
        command, cwd=REPOSITORY, env=variables, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stderr


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_compiling_is_announced_once_and_does_not_count_as_training_time(
    positions: Path, tmp_path: Path
) -> None:
    words = ["train", "--positions", positions, "--preset", "fianchetto-human", "--minutes", "0.1"]
    words += ["--batch-size", "8", "--device", "cpu", "--out"]
    errors = run_with_own_cache(tmp_path, *words, tmp_path / "net")
    assert errors.count("compiling kernels:") == 1
    assert load(tmp_path / "net")[1]["step"] > 3
    assert list((tmp_path / "kernels").glob("*/move_features.*.nbi"))
    assert run_with_own_cache(tmp_path, *words, tmp_path / "again") == ""
    words = ["ingest", positions.parent / "games.pgn", "--workers", "2", "--out"]
    for name, count in (("first", 1), ("second", 0)):
        errors = run_with_own_cache(tmp_path, *words, tmp_path / name)
        assert errors.count("compiling kernels:") == count, errors


def test_the_kernel_modules_that_jobs_announce_exist(positions: Path) -> None:
    warm_up(uniform)
    for module in ("replay", "puct"):  # pipeline/ingest/job.py, pipeline/selfplay/job.py
        assert has_compiled_kernels(module), module
    assert not has_compiled_kernels("nothing")


def test_runs_and_exports_do_not_write_into_datasets(positions: Path, tmp_path: Path) -> None:
    before, joined = content(positions), tmp_path / "set"
    join([positions], joined, JoinConfig(hold_out="none"))
    for dataset, out in ((positions, positions), (joined, joined), (joined, positions / "net")):
        with pytest.raises(ConfigError, match=r"choose (an empty or new|another) directory"):
            train_on_datasets([dataset], "fianchetto-xs", STEPS, out)
    for name in ("manifest.json", "net.onnx"):
        with pytest.raises(ConfigError, match=r"end in \.onnx|is a dataset: choose another"):
            Export(checkpoint=EMBEDDED_CHECKPOINT, out=positions / name).run()
    assert content(positions) == before


def test_a_run_starts_from_a_checkpoint_and_records_its_data(
    positions: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Training from scratch on few games logs the advice to start from a checkpoint, once."""
    messages = list[str]()
    monkeypatch.setattr(
        "pipeline.training.train.LOG.info", lambda text, *words: messages.append(text % words)
    )
    for _ in range(2):
        first = train_on_datasets([positions], "fianchetto-xs", STEPS, tmp_path / "first")
    config = TrainConfig(steps=1, batch_size=8, threads=1, learning_rate=1e-12, ema=0.0)
    start = tmp_path / "first"
    card = train_on_datasets([positions], "fianchetto-xs", config, tmp_path / "second", start=start)
    (advice,) = messages
    assert "--start" in advice
    assert card["data"]["start"]["weights_sha256"] == first["files"]["weights"]["sha256"]
    assert card["data"]["start"]["data"] == first["data"]
    before, after = (
        dict(load(tmp_path / name)[0].named_parameters()) for name in ("first", "second")
    )
    last = [name for name in before if name.startswith("value.")][-2:]  # they are calibrated again
    scales = dict.fromkeys(last, card["calibration"]["factor"])
    for name, weights in before.items():
        assert torch.allclose(scales.get(name, 1.0) * weights, after[name], atol=1e-6), name
    with pytest.raises(ValueError, match="different preset"):
        train_on_datasets([positions], "self-learning", STEPS, tmp_path / "third", start=start)


def test_a_checkpoint_with_an_older_preset_row_keeps_it(
    positions: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    older, start = replace(preset("fianchetto-xs"), view="marro13+last"), tmp_path / "old"
    with monkeypatch.context() as patch:
        patch.setattr(pipeline.training.train, "find_preset", lambda *_: older)
        train_on_datasets([positions], "fianchetto-xs", STEPS, start)
    for stop in (True, False):  # a new run, and its resumption
        options: Any = {"start": start, "stop": lambda: stop}  # noqa: B023
        card = train_on_datasets([positions], "fianchetto-xs", STEPS, tmp_path / "new", **options)
        assert preset_from_dict(card["preset"]) == older != preset("fianchetto-xs")


def test_the_time_control_of_real_games_reaches_network_and_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blitz = shared_data("pgn/lichess_export_2024-05_blitz.pgn").read_text()[:60_000]
    with zstandard.open(shared_data("pgn/lichess_rapid_eval_train.pgn.zst"), "rt") as file:
        rapid = file.read(150_000)
    games = tmp_path / "games.pgn"
    games.write_text("".join(text[: text.rindex("[Event ")] for text in (blitz, rapid)))
    ingest([str(games)], tmp_path / "positions", IngestConfig(test_share=0.4), workers=1)
    monkeypatch.setattr("model.network.presets.preset", lambda name: small(preset(name)))
    config = replace(STEPS, steps=3, batch_size=64)
    train_on_datasets([tmp_path / "positions"], "fianchetto-human-m", config, tmp_path / "net")
    rule = PositionFilter(limit=0)
    measured = report(tmp_path / "net", positions=tmp_path / "positions", rule=rule)
    speeds = [row["band"] for row in measured["slices"]["time control"]]
    assert sorted(speeds) == ["blitz", "rapid"]
    rows = next(Batches([tmp_path / "positions"], "test", batch_size=512).read_rows())
    network = evaluator(tmp_path / "net", device="cpu", amp="off")
    logits = network(rows["planes"], rows)[0]
    hidden = network(rows["planes"], rows | {"base": np.full_like(rows["base"], 65535)})[0]
    assert (np.abs(hidden - logits).max(1) > 0).all()
