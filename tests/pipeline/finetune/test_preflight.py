"""Before a fine-tune: its teacher is judged against its pupil; and a generation that searches positions in place of games."""

import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
import pytest

from engine.errors import UserError
from engine.progress import never, silent
from model.training.config import TrainConfig
from pipeline.dataset.files.shards import verify
from pipeline.errors import ConfigError
from pipeline.finetune.config import EvalConfig, FinetuneConfig
from pipeline.finetune.loop import require
from pipeline.finetune.preflight import compared, preflight
from pipeline.finetune.stages import StageContext, explore_stage, train_stage
from pipeline.finetune.state import FinetuneError
from pipeline.selfplay.config import ExploreConfig
from tests.pipeline import datasets
from tests.pipeline.judging import engine
from tests.pipeline.selfplay.generations import prepare, searched

LOOP = FinetuneConfig(
    generations=1,
    workers=1,
    explore=searched(count=24, width=8),
    train=TrainConfig(steps=3, batch_size=8, threads=1, amp="off", frozen_norms=True),
    preflight=4,
)


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Make a checkpoint and a dataset."""
    return prepare(tmp_path_factory.mktemp("preflight"), games=30)


def test_a_teacher_must_lose_less_and_err_less_in_a_value_that_it_teaches() -> None:
    pupil = {"policy_loss": 0.061, "value_error": 0.112}
    own = {"taught_loss": 0.025, "best_error": 0.09}
    found = compared(pupil, own, LOOP)
    assert found["better"]
    assert "policy loses 0.0250 of expected score per move, and the network's 0.0610" in found["text"]
    assert found["text"].endswith("its value errs by 0.0900, and the network's by 0.1120")
    worse = own | {"best_error": 0.113}
    assert compared(pupil, worse, LOOP)["better"], "it teaches no value"
    taught = replace(LOOP, train=replace(LOOP.train, search_value_share=0.9))
    assert not compared(pupil, worse, taught)["better"]
    assert not compared(pupil, own | {"taught_loss": 0.07}, LOOP)["better"]


def test_a_loop_is_not_begun_where_the_search_knows_less(sources: tuple[Path, Path], tmp_path: Path) -> None:
    """By an engine that likes moves by the order of their letters, a network that knows nothing has nothing to teach."""
    config = replace(LOOP, eval=EvalConfig(engine=" ".join(engine(tmp_path))))
    better = []
    for seed in range(6):
        asked, out = replace(config, seed=seed), tmp_path / str(seed)
        told = preflight(sources[0], replace(asked, force=True), [sources[1]], out, silent, never)
        assert told is not None
        assert told["better"] == (told["policy"]["teacher"] < told["policy"]["pupil"])
        better.append(told["better"])
        assert preflight(sources[0], asked, [sources[1]], out, silent, never) is None, "once a loop"
        (out / "preflight.json").unlink()
        if told["better"]:
            assert preflight(sources[0], asked, [sources[1]], out, silent, never) == told
        else:
            with pytest.raises(FinetuneError, match=rf"^{re.escape(told['text'])}.*with --force$"):
                preflight(sources[0], asked, [sources[1]], out, silent, never)
    assert not all(better)


def test_nothing_is_judged_without_positions_or_an_engine(sources: tuple[Path, Path], tmp_path: Path) -> None:
    nobody = replace(LOOP, eval=EvalConfig(engine="no-such-engine"))
    assert preflight(sources[0], nobody, [sources[1]], tmp_path / "a", silent, never) is None
    config = replace(LOOP, eval=EvalConfig(engine=" ".join(engine(tmp_path))))
    assert preflight(sources[0], config, [], tmp_path / "b", silent, never) is None
    assert preflight(sources[0], replace(config, preflight=0), [sources[1]], tmp_path / "c", silent, never) is None


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
        best_number=0,
        seed=checkpoint,
        buffer=(tmp_path / "selfplay",),
        human=(human,),
        config=replace(LOOP, explore=searched(count=24, width=8, device=device)),
        accepted=False,
        lineage={"generation": 1},
        spent={},
    )
    figures = explore_stage(context, silent, never)
    assert verify(tmp_path / "selfplay") == []
    manifest = datasets.manifest(tmp_path / "selfplay")
    assert (checkpoint / "model.onnx").exists() == (device == "onnx")
    (used,) = manifest["selfplay"]["timing"]["devices"]
    assert used.startswith("cpu")
    assert (used == "cpu onnxruntime int8") == (device == "onnx")
    assert figures["searched"] == manifest["selfplay"]["searched"] > 0
    assert figures["positions"] == manifest["positions"]["train"]
    assert manifest["config"]["seed"] == 1
    learned = train_stage(context, silent, never)
    assert learned["step"] == 3
    assert np.isfinite(learned["loss"])


def test_reanalyse_needs_positions() -> None:
    with pytest.raises(ConfigError, match="name datasets with --positions"):
        require(LOOP, ())
    require(LOOP)
    with pytest.raises(UserError, match="preflight must be 0"):
        replace(LOOP, preflight=-1)


def test_a_loop_whose_networks_cannot_be_exported_is_not_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.finetune.loop.find_spec", lambda name: None)
    searching = replace(LOOP, explore=searched(device="onnx"))
    games = replace(LOOP, explore=ExploreConfig(explorer="hand-written", device="onnx"))
    playing = replace(LOOP, explore=ExploreConfig(explorer="network", device="onnx"))
    for config in (searching, playing):
        with pytest.raises(ConfigError, match=r"pip install 'fianchetto\[onnx\]'"):
            require(config)
    require(games)  # no network plays
