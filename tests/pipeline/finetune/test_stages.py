"""The stages of a generation, and the settings that are refused before the first one."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import numpy as np
import pytest

from engine.progress import never, silent
from model.checkpoint import CARD_FILE, read_card
from model.training.config import TrainConfig
from model.training.step import DivergedError
from pipeline.dataset.join import join
from pipeline.errors import ConfigError
from pipeline.finetune import stages
from pipeline.finetune.config import FinetuneConfig, default_training
from pipeline.finetune.loop import check_settings, identify_loop
from pipeline.finetune.stages import (
    CONTROL_FOLDER,
    StageContext,
    arena_stage,
    eval_stage,
    explore_stage,
    train_control,
    train_stage,
)
from pipeline.finetune.teacher import adapt_to_hand_written
from pipeline.selfplay.config import ExploreConfig
from pipeline.storage.stores import hash_file
from pipeline.validation.verify import compare_files
from tests.pipeline import datasets
from tests.pipeline.cli.conftest import invoke
from tests.pipeline.selfplay.generations import prepare, searched

LOOP = FinetuneConfig(
    generations=1,
    workers=1,
    explore=searched(source="games", count=24, width=8),
    train=replace(default_training(), batch_size=8, threads=1, device="cpu"),
)


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Make a checkpoint and a dataset."""
    return prepare(tmp_path_factory.mktemp("stages"), games=30)


@pytest.fixture
def context(sources: tuple[Path, Path], tmp_path: Path) -> StageContext:
    """Return the context of a first generation, whose candidate is the checkpoint itself."""
    return StageContext(
        number=1,
        folder=tmp_path,
        candidate=sources[0],
        best=sources[0],
        supervised=sources[0],
        buffer=(),
        human=(sources[1],),
        config=LOOP,
        requested=LOOP,
        lineage={"generation": 1},
        spent={},
    )


@pytest.mark.parametrize("device", ["cpu", pytest.param("onnx", marks=pytest.mark.slow)])
def test_a_generation_searches_its_sources_and_trains_on_them(
    context: StageContext, device: Literal["cpu", "onnx"]
) -> None:
    searching = searched(source="games", count=24, games=8, width=8, most_plies=20, device=device)
    sources, folder = ("games", "near", "people"), context.folder
    checkpoint = Path(shutil.copytree(context.best, folder / "best"))
    context = replace(
        context,
        candidate=folder / "checkpoint",
        best=checkpoint,
        buffer=tuple(folder / source for source in sources),
        config=replace(LOOP, games_share=0.25, near_share=0.25, explore=searching),
    )
    figures = explore_stage(context, silent, never)
    assert (checkpoint / "model.onnx").exists() == (device == "onnx")
    manifests = {source: datasets.manifest(folder / source) for source in sources}
    for source, manifest in manifests.items():
        assert compare_files(folder / source) == []
        (worker,) = manifest["selfplay"]["timing"]["devices"]
        assert (worker == "cpu onnxruntime int8") == (device == "onnx"), worker
        assert manifest["config"]["source"] == source
        assert figures["sources"][source]["positions"] == manifest["positions"]["train"] > 0
    assert len({manifest["config"]["seed"] for manifest in manifests.values()}) == len(sources)
    assert figures["games"] == 2
    assert [manifests[source]["config"]["count"] for source in ("near", "people")] == [6, 12]
    assert figures["positions"] == sum(one["positions"] for one in figures["sources"].values())
    learned = train_stage(context, silent, never)
    assert learned["step"] > 0
    assert np.isfinite(learned["loss"])


def test_training_uses_the_loops_seed() -> None:
    config = LOOP.make_train_config(seed=3)
    assert (config.seed, config.epochs, config.teach) == (3, 1.6, "policy")
    for wrong in (replace(LOOP.train, seed=1), replace(LOOP.train, epochs=None, steps=9)):
        with pytest.raises(ConfigError, match="in epochs with the loop's seed"):
            replace(LOOP, train=wrong)


def test_without_a_teacher_the_candidate_trains_on_human_rows(context: StageContext) -> None:
    config = replace(LOOP, human_share=0.25, train=replace(LOOP.train, teach="none", epochs=2.0))
    candidate = context.folder / "checkpoint"
    context = replace(context, candidate=candidate, config=config, spent={"earlier": 1.0})
    assert explore_stage(context, silent, never) == {}
    figures = train_stage(context, silent, never)
    assert figures["step"] == 24 * 2 / 0.75 / 8
    (human,) = context.human
    passes = figures["positions"] / datasets.manifest(human)["positions"]["train"]
    uses = {hash_file(human / "manifest.json"): pytest.approx(passes)}
    assert figures["spent"] == {"earlier": 1.0, **uses}


def test_a_training_set_can_replace_its_datasets(context: StageContext) -> None:
    (positions,), joined = context.human, context.folder / "set"
    join([positions], joined)
    (entry,) = identify_loop(context.best, [joined], LOOP)["human"]
    digest = hash_file(positions / "manifest.json")
    assert (entry["name"], entry["manifest_sha256"]) == (positions.name, digest)
    config = replace(LOOP, explore=replace(LOOP.explore, count=16))
    context = replace(context, human=(joined,), config=config)
    assert explore_stage(context, silent, never)["positions"] == 16


def test_a_control_starts_from_the_control_of_the_best_network(
    context: StageContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    starts: list[Path] = []
    configs: list[TrainConfig] = []

    def train_on_datasets(
        human: Any, name: str, config: TrainConfig, *others: Any
    ) -> dict[str, Any]:
        starts.append(others[-1])
        configs.append(config)
        return {"finished": True, "step": 1, "positions": 1, "metrics": {}}

    monkeypatch.setattr(stages, "train_on_datasets", train_on_datasets)
    adapted = adapt_to_hand_written(LOOP, rows=100)
    assert not adapted.train.results
    context = replace(context, config=adapted)
    assert train_control(context, silent, never) == tmp_path / CONTROL_FOLDER
    second = replace(context, number=2, best=tmp_path / "best" / "checkpoint")
    train_control(second, silent, never)  # generation 1 was trained on human rows alone
    control = Path(shutil.copytree(context.best, second.best.parent / CONTROL_FOLDER))
    train_control(second, silent, never)
    card = json.loads((control / CARD_FILE).read_text())
    (control / CARD_FILE).write_text(json.dumps(card | {"finished": False}))  # it diverged
    train_control(second, silent, never)
    assert starts == [context.best, second.best, control, second.best]
    config = configs[0]  # the requested settings, not those adapted to the teacher
    assert (config.results, config.learning_rate, config.value_weight) == (True, 7e-4, 2.0)
    assert not config.frozen_norms
    assert config.steps == read_card(context.best)["step"]
    # the training does not stop early, but keeps its best weights
    assert 1 < -(-config.steps // config.validation_every_steps) <= config.patience


def test_a_control_that_diverges_does_not_end_the_loop(
    context: StageContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    def diverge(*_: object) -> Path:
        raise DivergedError("the loss is not finite")

    monkeypatch.setattr(stages, "train_control", diverge)
    monkeypatch.setattr(stages, "play_match", lambda *_, **__: {"sprt": {"verdict": "H1"}})
    matches = arena_stage(context, silent, never)
    assert (matches["control"], matches["control_failed"]) == (None, "the loss is not finite")


def test_each_dataset_of_human_moves_has_a_report_and_figures_are_averaged(
    context: StageContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    figures = {"positions": 20, "top1": 0.4, "top3": 0.6, "cross_entropy": 2.0, "value_brier": None}
    reports = {"1": figures, "2": figures | {"positions": 60, "top1": 0.8, "value_brier": 0.2}}
    human = tuple(tmp_path / number / "2013-01" for number in ("1", "2", "engine", "untested"))

    def open_dataset(path: Path) -> Any:
        return SimpleNamespace(
            path=path,
            has_rows=lambda split: split == "test" and path.parent.name != "untested",
            has_engine_moves=path.parent.name == "engine",
        )

    written: list[Path] = []
    monkeypatch.setattr(stages, "Dataset", SimpleNamespace(open=open_dataset))
    monkeypatch.setattr(stages, "report", lambda _, positions, **__: reports[positions.parent.name])
    monkeypatch.setattr(stages, "write_report", lambda _, out: written.append(out))
    means = {"top1": 0.7, "top3": 0.6, "cross_entropy": 2.0, "value_brier": 0.2}
    measured = eval_stage(replace(context, human=human), silent, never)
    assert measured == {"positions": 80, **means}
    assert [path.name for path in written] == ["1-2013-01", "2-2013-01"]
    eval_stage(replace(context, human=human[1:]), silent, never)
    assert written[-1] == context.folder / "eval" / "2013-01"


def test_human_rows_are_used_for_one_pass_if_the_policy_is_kept(
    context: StageContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    shares: list[float] = []

    def tune_on(*_: object, human_share: float, **__: object) -> dict[str, Any]:
        shares.append(human_share)
        return {"finished": True, "step": 1, "positions": 1, "metrics": {}, "uses": []}

    monkeypatch.setattr("pipeline.training.tune.tune_on", tune_on)
    digest = hash_file(context.human[0] / "manifest.json")
    for teach, uses in (("value", 0.99), ("value", 1.0), ("both", 1.0)):
        train: Any = replace(LOOP.train, teach=teach)
        used = replace(context, config=replace(LOOP, train=train), spent={digest: uses})
        train_stage(used, silent, never)
    assert shares == [0.5, 0.0, 0.5]


def test_settings_that_a_later_stage_would_reject_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    by_hand = replace(LOOP, games_share=1.0, explore=ExploreConfig(explorer="hand-written"))
    nothing = replace(by_hand, train=replace(LOOP.train, teach="none"))
    for config, human, message in (
        (LOOP, (), "name them with --positions"),
        (replace(LOOP, explore=searched()), ("human",), "cannot be set for a loop"),
        (nothing, (), "human rows alone"),
    ):
        with pytest.raises(ConfigError, match=message):
            check_settings(config, [Path(name) for name in human])
    monkeypatch.setattr("pipeline.finetune.loop.find_spec", lambda name: None)
    # the candidate's matches are played with exports, whoever explores
    exported = replace(by_hand, explore=replace(by_hand.explore, device="onnx"))
    with pytest.raises(ConfigError, match=r"pip install 'fianchetto\[onnx\]'"):
        check_settings(exported, [Path("human")])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--generations 1 --games-share 1 --explorer hand-written", "holds no checkpoint"),
        ("", "set how long to fine-tune: generations, minutes or both"),
        ("--generations 1 --set train.search_value_share=0.9", "teach=both or value"),
        ("--generations 1 --set gate.elo0=50", "got elo0 = 50 and"),
    ],
)
def test_a_mistake_is_one_line_and_leaves_nothing(
    words: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, error = invoke(*f"finetune --checkpoint x --out y {words}".split())
    assert (code, out, error.count("\n")) == (2, "", 1)
    assert message in error
    assert list(tmp_path.iterdir()) == []
