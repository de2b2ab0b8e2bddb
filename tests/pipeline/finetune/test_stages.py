"""The stages of a generation that search positions and train on them; and settings that are refused
before they begin."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import numpy as np
import pytest

from engine.progress import never, silent
from model.checkpoint import CARD, read_card
from model.training.config import TrainConfig, TrainConfigError
from model.training.step import DivergedError
from pipeline.dataset.files.shards import file_hash
from pipeline.dataset.join import join
from pipeline.errors import ConfigError
from pipeline.finetune import control, evaluation, gate
from pipeline.finetune.config import FinetuneConfig, default_training
from pipeline.finetune.loop import identify, require
from pipeline.finetune.stages import explore_stage, train_stage
from pipeline.finetune.state import StageContext
from pipeline.finetune.teacher import teach_by_hand
from pipeline.selfplay.config import ExploreConfig
from pipeline.validation.verify import files_differ
from tests.pipeline import datasets
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


@pytest.mark.parametrize("device", ["cpu", pytest.param("onnx", marks=pytest.mark.slow)])
def test_a_generation_searches_its_sources_by_their_shares(
    sources: tuple[Path, Path], tmp_path: Path, device: Literal["cpu", "onnx"]
) -> None:
    searching = searched(source="games", count=24, games=8, width=8, most_plies=20, device=device)
    shares = {"games": 0.25, "near": 0.25, "people": 0.5}
    human = sources[1]
    checkpoint = Path(shutil.copytree(sources[0], tmp_path / "best"))
    context = StageContext(
        number=1,
        folder=tmp_path,
        candidate=tmp_path / "checkpoint",
        best=checkpoint,
        seed=checkpoint,
        buffer=tuple(tmp_path / source for source in shares),
        human=(human,),
        config=replace(LOOP, games_share=0.25, near_share=0.25, explore=searching),
        requested=LOOP,
        lineage={"generation": 1},
        spent={},
    )
    figures = explore_stage(context, silent, never)
    assert (checkpoint / "model.onnx").exists() == (device == "onnx")
    manifests = {source: datasets.manifest(tmp_path / source) for source in shares}
    for source, manifest in manifests.items():
        assert files_differ(tmp_path / source) == []
        (worker,) = manifest["selfplay"]["timing"]["devices"]
        assert (worker == "cpu onnxruntime int8") == (device == "onnx"), worker
        assert manifest["config"]["source"] == source
        assert figures["sources"][source]["positions"] == manifest["positions"]["train"] > 0
    assert len({manifest["config"]["seed"] for manifest in manifests.values()}) == len(shares)
    assert figures["games"] == 2
    assert [manifests[source]["config"]["count"] for source in ("near", "people")] == [6, 12]
    assert figures["positions"] == sum(one["positions"] for one in figures["sources"].values())
    learned = train_stage(context, silent, never)
    assert learned["step"] > 0
    assert np.isfinite(learned["loss"])


def test_reanalyse_needs_positions() -> None:
    with pytest.raises(ConfigError, match="name datasets with --positions"):
        require(LOOP, ())
    with pytest.raises(ConfigError, match="--games-share and --near-share say what is searched"):
        require(replace(LOOP, explore=searched()), [Path("human")])


def test_training_has_the_loops_seed_and_wrong_settings_of_it_are_refused() -> None:
    made = LOOP.training(seed=3)
    assert (made.seed, made.epochs, made.teach, made.frozen_norms) == (3, 1.6, "policy", True)
    with pytest.raises(TrainConfigError, match="momentum must be at most"):
        replace(LOOP.train, momentum=2)
    for wrong in (replace(LOOP.train, seed=1), replace(LOOP.train, epochs=None, steps=9)):
        with pytest.raises(ConfigError, match="for epochs, with the loop's seed"):
            replace(LOOP, train=wrong)


def test_a_loop_whose_networks_cannot_be_exported_is_not_begun(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("pipeline.finetune.loop.find_spec", lambda name: None)
    searching = replace(LOOP, explore=searched(source="games", device="onnx"))
    games = replace(
        LOOP, games_share=1.0, explore=ExploreConfig(explorer="hand-written", device="onnx")
    )
    playing = replace(
        LOOP, games_share=1.0, explore=ExploreConfig(explorer="network", device="onnx")
    )
    # the candidate's matches are played with exports, whoever explores
    for config in (searching, playing, games):
        with pytest.raises(ConfigError, match=r"pip install 'fianchetto\[onnx\]'"):
            require(config, [Path("human")])


def test_where_nothing_teaches_people_alone_do_for_as_many_steps(
    sources: tuple[Path, Path], tmp_path: Path
) -> None:
    config = replace(LOOP, human_share=0.25, train=replace(LOOP.train, teach="none", epochs=2.0))
    context = StageContext(
        number=1,
        folder=tmp_path,
        candidate=tmp_path / "checkpoint",
        best=sources[0],
        seed=sources[0],
        buffer=(tmp_path / "people",),
        human=(sources[1],),
        config=config,
        requested=config,
        lineage={"generation": 1},
        spent={"earlier": 1.0},
    )
    assert explore_stage(context, silent, never) == {}
    assert not (tmp_path / "people").exists()
    figures = train_stage(context, silent, never)
    assert figures["step"] == 24 * 2 / 0.75 / 8
    passes = figures["positions"] / datasets.manifest(sources[1])["positions"]["train"]
    assert figures["spent"] == {
        "earlier": 1.0,
        file_hash(sources[1] / "manifest.json"): pytest.approx(passes),
    }
    with pytest.raises(ConfigError, match="human rows alone"):
        require(
            replace(config, games_share=1.0, explore=ExploreConfig(explorer="hand-written")), ()
        )


def test_a_training_set_may_be_named_in_place_of_its_datasets(
    sources: tuple[Path, Path], tmp_path: Path
) -> None:
    checkpoint, positions = sources
    join([positions], tmp_path / "set")
    (told,) = identify(checkpoint, [tmp_path / "set"], LOOP)["human"]
    assert (told["name"], told["manifest_sha256"]) == (
        positions.name,
        file_hash(positions / "manifest.json"),
    )
    context = replace(
        control_context(sources, tmp_path, LOOP),
        candidate=tmp_path / "checkpoint",
        human=(tmp_path / "set",),
    )
    searching = replace(context, config=replace(LOOP, explore=replace(LOOP.explore, count=16)))
    assert explore_stage(searching, silent, never)["positions"] == 16
    assert train_stage(replace(searching, buffer=(tmp_path / "people",)), silent, never)["step"] > 0


def control_context(
    sources: tuple[Path, Path], folder: Path, config: FinetuneConfig, best: int = 0
) -> StageContext:
    """Return the context of a generation's control, after generation `best`."""
    return StageContext(
        number=best + 1,
        folder=folder,
        candidate=sources[0],
        best=folder / "best" / "checkpoint" if best else sources[0],
        seed=sources[0],
        buffer=(),
        human=(sources[1],),
        config=config,
        requested=LOOP,
        lineage={"generation": best + 1, "played_by": best},
        spent={},
    )


def test_a_control_starts_from_the_best_networks_control_or_from_a_best_network_without_one(
    sources: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    starts: list[Path] = []

    def train_on(*arguments: Any) -> dict[str, Any]:
        starts.append(arguments[-1])
        return {"finished": True}

    monkeypatch.setattr(control, "train_on", train_on)
    control.train_control(control_context(sources, tmp_path, LOOP), silent, never)
    after = control_context(sources, tmp_path, LOOP, best=1)
    control.train_control(after, silent, never)  # generation 1 was trained on human rows alone
    before = Path(shutil.copytree(sources[0], after.best.parent / control.CONTROL))
    control.train_control(after, silent, never)
    card = json.loads((before / CARD).read_text())
    (before / CARD).write_text(json.dumps(card | {"finished": False}))  # its training diverged
    control.train_control(after, silent, never)
    assert starts == [sources[0], after.best, before, after.best]


def test_a_control_that_diverges_does_not_end_the_loop(
    sources: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def diverge(*_: object) -> Path:
        raise DivergedError("the loss is not finite")

    monkeypatch.setattr(gate, "train_control", diverge)
    monkeypatch.setattr(gate, "play_match", lambda *_, **__: {"sprt": {"verdict": "H1"}})
    found = gate.arena_stage(control_context(sources, tmp_path, LOOP), silent, never)
    assert (found["control"], found["control_failed"]) == (None, "the loss is not finite")


def test_figures_of_human_moves_leave_out_engine_moves_and_unknown_results(
    sources: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    figures = {"positions": 20, "top1": 0.4, "top3": 0.6, "cross_entropy": 2.0, "value_brier": None}
    reports = {"a": figures, "b": figures | {"positions": 60, "top1": 0.8, "value_brier": 0.2}}

    def opened(path: Path) -> Any:
        return SimpleNamespace(
            path=path,
            has=lambda split: split == "test" and path != Path("untested"),
            has_engine_moves=path == Path("engine"),
        )

    monkeypatch.setattr(evaluation, "Dataset", SimpleNamespace(open=opened))
    monkeypatch.setattr(evaluation, "report", lambda _, positions, **__: reports[positions.name])
    monkeypatch.setattr(evaluation, "write_report", lambda *_: None)
    context = replace(
        control_context(sources, tmp_path, LOOP),
        human=tuple(map(Path, ("a", "b", "engine", "untested"))),
    )
    found = evaluation.eval_stage(context, silent, never)
    assert found == {
        "positions": 80,
        "top1": 0.7,
        "top3": 0.6,
        "cross_entropy": 2.0,
        "value_brier": 0.2,
    }


@pytest.mark.parametrize(
    ("teach", "uses", "share"),
    [("value", 0.99, 0.5), ("value", 1.0, 0.0), ("policy", 1.0, 0.5), ("both", 1.0, 0.5)],
)
def test_human_rows_are_left_out_after_one_pass_where_the_policy_is_kept(
    sources: tuple[Path, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    teach: Literal["value", "policy", "both"],
    uses: float,
    share: float,
) -> None:
    shares: list[float] = []

    def tune_on(*_: object, human_share: float, **__: object) -> dict[str, Any]:
        shares.append(human_share)
        return {"finished": True, "step": 1, "positions": 1, "metrics": {}, "uses": []}

    monkeypatch.setattr("pipeline.training.tune.tune_on", tune_on)
    context = control_context(
        sources, tmp_path, replace(LOOP, train=replace(LOOP.train, teach=teach))
    )
    train_stage(
        replace(context, spent={file_hash(sources[1] / "manifest.json"): uses}), silent, never
    )
    assert shares == [share]


def test_the_control_is_trained_as_asked_and_not_as_suits_the_teacher(
    sources: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained: list[TrainConfig] = []

    def train_on(
        human: object, preset: object, config: TrainConfig, *rest: object
    ) -> dict[str, Any]:
        trained.append(config)
        return {"finished": True}

    monkeypatch.setattr(control, "train_on", train_on)
    chosen = teach_by_hand(LOOP, rows=100)
    assert not chosen.train.results
    context = control_context(sources, tmp_path, chosen)
    assert control.train_control(context, silent, never) == tmp_path / control.CONTROL
    (config,) = trained
    assert (config.results, config.learning_rate, config.value_weight) == (True, 7e-4, 2.0)
    assert not config.frozen_norms
    assert config.steps == read_card(sources[0])["step"]
    assert 1 < -(-config.steps // config.validation_every_steps) <= config.patience, (
        "it ends, with its best weights"
    )
