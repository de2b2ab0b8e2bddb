"""The stages of a generation that search positions and train on them; and settings that are refused before they begin."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
import pytest

from engine.progress import never, silent
from model.training.config import TrainConfigError
from pipeline.errors import ConfigError
from pipeline.finetune.config import FinetuneConfig, TuneConfig
from pipeline.finetune.loop import require
from pipeline.finetune.stages import explore_stage, train_stage
from pipeline.finetune.state import StageContext
from pipeline.selfplay.config import ExploreConfig
from pipeline.validation.verify import files_differ
from tests.pipeline import datasets
from tests.pipeline.selfplay.generations import prepare, searched

LOOP = FinetuneConfig(
    generations=1,
    workers=1,
    explore=searched(count=24, width=8),
    train=TuneConfig(batch_size=8, threads=1, device="cpu"),
)


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Make a checkpoint and a dataset."""
    return prepare(tmp_path_factory.mktemp("stages"), games=30)


@pytest.mark.parametrize("device", ["cpu", pytest.param("onnx", marks=pytest.mark.slow)])
def test_a_generation_may_search_positions_in_place_of_games(
    sources: tuple[Path, Path], tmp_path: Path, device: Literal["cpu", "onnx"]
) -> None:
    human = sources[1]
    checkpoint = Path(shutil.copytree(sources[0], tmp_path / "best"))
    context = StageContext(
        number=1,
        folder=tmp_path,
        candidate=tmp_path / "checkpoint",
        best=checkpoint,
        seed=checkpoint,
        buffer=(tmp_path / "selfplay",),
        human=(human,),
        config=replace(LOOP, explore=searched(count=24, width=8, device=device)),
        lineage={"generation": 1},
        spent={},
    )
    figures = explore_stage(context, silent, never)
    assert files_differ(tmp_path / "selfplay") == []
    manifest = datasets.manifest(tmp_path / "selfplay")
    assert (checkpoint / "model.onnx").exists() == (device == "onnx")
    (worker,) = manifest["selfplay"]["timing"]["devices"]
    assert (worker == "cpu onnxruntime int8") == (device == "onnx"), worker
    assert figures["searched"] == manifest["selfplay"]["searched"] > 0
    assert figures["positions"] == manifest["positions"]["train"]
    assert manifest["config"]["seed"] == 1
    learned = train_stage(context, silent, never)
    assert learned["step"] > 0
    assert np.isfinite(learned["loss"])


def test_reanalyse_needs_positions() -> None:
    with pytest.raises(ConfigError, match="name datasets with --positions"):
        require(LOOP, ())


def test_training_has_the_loops_seed_and_wrong_settings_of_it_are_refused() -> None:
    made = TuneConfig().train_config(seed=3)
    assert (made.seed, made.epochs, made.frozen_norms) == (3, 1.6, True)
    with pytest.raises(TrainConfigError, match="momentum is 2"):
        TuneConfig(momentum=2)


def test_a_loop_whose_networks_cannot_be_exported_is_not_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.finetune.loop.find_spec", lambda name: None)
    searching = replace(LOOP, explore=searched(device="onnx"))
    games = replace(LOOP, explore=ExploreConfig(explorer="hand-written", device="onnx"))
    playing = replace(LOOP, explore=ExploreConfig(explorer="network", device="onnx"))
    for config in (searching, playing):
        with pytest.raises(ConfigError, match=r"pip install 'fianchetto\[onnx\]'"):
            require(config, [Path("human")])
    require(games, ())  # no network plays


def test_where_nothing_teaches_people_alone_do_for_as_many_steps(sources: tuple[Path, Path], tmp_path: Path) -> None:
    config = replace(LOOP, human_share=0.25, train=replace(LOOP.train, teach="none", epochs=2.0))
    context = StageContext(
        number=1,
        folder=tmp_path,
        candidate=tmp_path / "checkpoint",
        best=sources[0],
        seed=sources[0],
        buffer=(tmp_path / "selfplay",),
        human=(sources[1],),
        config=config,
        lineage={"generation": 1},
        spent={"earlier": 1.0},
    )
    assert explore_stage(context, silent, never) == {}
    assert not (tmp_path / "selfplay").exists()
    figures = train_stage(context, silent, never)
    assert figures["step"] == 24 * 2 / 0.75 / 8
    assert figures["spent"] == {"earlier": 1.0}
    with pytest.raises(ConfigError, match="people's rows alone"):
        require(replace(config, explore=ExploreConfig(explorer="hand-written")), ())
