"""Datasets into checkpoints: the glue between batches and the trainer."""

import json
from pathlib import Path

import pytest
import torch

from model.checkpoint import load
from model.config import TrainConfig
from pipeline.chunk import IngestConfig
from pipeline.errors import ConfigError, DatasetError
from pipeline.ingest import ingest
from pipeline.training import train_on
from tests.pipeline.datasets import random_game

STEPS = TrainConfig(steps=2, batch_size=8, threads=1)


@pytest.fixture(scope="module")
def positions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("training")
    dump = folder / "dump.pgn"
    dump.write_text("\n".join(random_game(seed) for seed in range(12)))
    ingest([str(dump)], folder / "positions", IngestConfig(test_share=0.2, val_share=0.3), workers=1)
    return folder / "positions"


def test_the_card_names_the_data_by_hash_and_not_by_place(positions: Path, tmp_path: Path) -> None:
    card = train_on([positions], "fianchetto-xs", STEPS, tmp_path / "net")
    stored = json.loads((tmp_path / "net" / "checkpoint.json").read_text())
    (dataset,) = stored["data"]["datasets"]
    manifest = json.loads((positions / "manifest.json").read_text())
    assert dataset["sources"][0]["sha256"] == manifest["sources"][0]["sha256"]
    assert dataset["positions"] == manifest["positions"]
    assert str(positions.parent) not in json.dumps(stored)
    assert card["step"] == 2
    assert card["finished"]
    assert "validation_top1" in card["metrics"]


def test_another_dataset_does_not_continue_a_run(positions: Path, tmp_path: Path) -> None:
    train_on([positions], "fianchetto-xs", STEPS, tmp_path / "net", stop=lambda: True)
    with pytest.raises(ValueError, match="data"):
        train_on([positions, positions], "fianchetto-xs", STEPS, tmp_path / "net")


def test_too_few_positions_are_refused_before_any_time_is_spent(positions: Path, tmp_path: Path) -> None:
    huge = TrainConfig(steps=1, batch_size=100_000)
    with pytest.raises(DatasetError, match="do not fill one batch"):
        train_on([positions], "fianchetto-xs", huge, tmp_path / "net")
    assert not (tmp_path / "net").exists()


def test_no_dataset_and_no_preset_are_said_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="at least one dataset"):
        train_on([], "fianchetto-xs", STEPS, tmp_path)
    with pytest.raises(ValueError, match="did you mean chessmarro"):
        train_on([tmp_path], "chesmarro", STEPS, tmp_path)


def test_a_run_may_begin_with_the_weights_of_another_and_says_what_those_have_seen(
    positions: Path, tmp_path: Path
) -> None:
    first = train_on([positions], "fianchetto-xs", STEPS, tmp_path / "first")
    slow = TrainConfig(steps=1, batch_size=8, threads=1, learning_rate=1e-12, ema=0.0)
    card = train_on([positions], "fianchetto-xs", slow, tmp_path / "second", start=tmp_path / "first")
    assert card["data"]["start"]["weights_sha256"] == first["files"]["weights"]["sha256"]
    assert card["data"]["start"]["data"] == first["data"]
    before, after = (dict(load(tmp_path / name)[0].named_parameters()) for name in ("first", "second"))
    assert all(torch.allclose(before[name], after[name], atol=1e-6) for name in before)
    with pytest.raises(ValueError, match="another preset"):
        train_on([positions], "self-learning", STEPS, tmp_path / "third", start=tmp_path / "first")
