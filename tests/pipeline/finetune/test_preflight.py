"""Before a fine-tune: its teacher is judged against its pupil; and a generation that searches positions in place of games."""

import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

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
from pipeline.selfplay.config import ExploreConfig, ExploreError
from pipeline.selfplay.play import explore
from tests.pipeline import datasets
from tests.pipeline.judging import engine
from tests.pipeline.reanalyse.reanalyses import prepare, small

LOOP = FinetuneConfig(
    generations=1,
    workers=1,
    explore=ExploreConfig(explorer="reanalyse"),
    reanalyse=small(count=24, width=8),
    train=TrainConfig(
        steps=3, batch_size=8, threads=1, amp="off", search_value="best", root_value_share=0.9, frozen_norms=True
    ),
    preflight=4,
)


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Make a checkpoint and a dataset."""
    return prepare(tmp_path_factory.mktemp("preflight"), games=30)


def row(policy: float, taught: float, value: float, root: float, best: float) -> dict[str, Any]:
    """Give a player's row of a judging."""
    named = {"policy_loss": policy, "taught_loss": taught, "value_error": value, "root_error": root, "best_error": best}
    return named | {"chosen_loss": 0.0}


def test_a_teacher_must_give_away_less_and_value_more_nearly_in_what_it_teaches() -> None:
    pupil = row(0.061, 0.0, 0.112, 0.0, 0.0)
    own = row(0.061, 0.025, 0.112, 0.113, 0.09)
    assert compared(pupil, own, LOOP)["better"], "its best move's value is nearer"
    root = replace(LOOP, train=replace(LOOP.train, search_value="root"))
    told = compared(pupil, own, root)
    assert not told["better"], "its root's value is not"
    assert "gives away 0.0250 where the network's gives away 0.0610" in told["text"]
    assert "0.1130 from the engine's where the network's is 0.1120" in told["text"]
    assert compared(pupil, own, replace(root, train=replace(root.train, root_value_share=0.0)))["better"], "untaught"
    assert not compared(pupil, row(0.1, 0.07, 0.12, 0.1, 0.1), LOOP)["better"], "its policy gives away more"


def test_a_loop_is_not_begun_where_the_search_knows_less(sources: tuple[Path, Path], tmp_path: Path) -> None:
    """By an engine that likes moves by the order of their letters, a network that knows nothing has nothing to teach."""
    config = replace(LOOP, eval=EvalConfig(engine=" ".join(engine(tmp_path))))
    better = []
    for seed in range(6):
        asked, out = replace(config, seed=seed), tmp_path / str(seed)
        told = preflight(sources[0], replace(asked, force=True), [sources[1]], out, silent, never)
        assert told is not None
        assert told["better"] == all(told[name]["teacher"] < told[name]["pupil"] for name in ("policy", "value"))
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
        config=replace(
            LOOP, reanalyse=small(count=24, width=8, device=device, amp="auto" if device == "onnx" else "off")
        ),
        accepted=False,
        lineage={"generation": 1},
        spent={},
    )
    figures = explore_stage(context, silent, never)
    assert verify(tmp_path / "selfplay") == []
    manifest = datasets.manifest(tmp_path / "selfplay")
    assert (checkpoint / "model.onnx").exists() == (device == "onnx")
    assert manifest["searches"]["timing"]["devices"] == ["cpu float32" if device == "cpu" else "cpu onnxruntime int8"]
    assert figures["searched"] == manifest["searches"]["searched"] > 0
    assert figures["positions"] == manifest["positions"]["train"]
    assert manifest["config"]["seed"] == 1
    learned = train_stage(context, silent, never)
    assert learned["step"] == 3
    assert np.isfinite(learned["loss"])


def test_reanalyse_needs_positions_and_is_no_explorer_of_games(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="name datasets with --positions"):
        require(LOOP, ())
    require(LOOP)
    with pytest.raises(ExploreError, match="reanalyse plays no games"):
        explore(None, ExploreConfig(explorer="reanalyse"), tmp_path / "out")
    with pytest.raises(UserError, match="preflight must be 0"):
        replace(LOOP, preflight=-1)


def test_a_loop_whose_networks_cannot_be_exported_is_not_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.finetune.loop.find_spec", lambda name: None)
    searching = replace(LOOP, reanalyse=small(device="onnx", amp="auto"))
    games = replace(LOOP, explore=ExploreConfig(explorer="hand-written", device="onnx"), first_explorer="same")
    first = replace(searching, explore=games.explore, first_explorer="reanalyse")
    playing = replace(LOOP, explore=ExploreConfig(explorer="network", device="onnx"))
    for config in (searching, first, playing):
        with pytest.raises(ConfigError, match=r"pip install 'fianchetto\[onnx\]'"):
            require(config)
    require(games)  # no network plays
