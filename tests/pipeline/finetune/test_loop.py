"""The loop as a state machine, with scripted stages: their order, the best network, stops and
errors."""

import csv
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engine.errors import UserError
from engine.progress import Tick
from model.checkpoint import load
from pipeline.errors import Stopped
from pipeline.finetune import loop
from pipeline.finetune.config import FinetuneConfig, GateConfig, default_training
from pipeline.finetune.loop import finetune
from pipeline.finetune.stages import decide
from pipeline.finetune.state import STAGES, FinetuneError, read_weights_hash
from pipeline.selfplay.config import ExploreConfig
from tests.pipeline.finetune.fakes import Script, match, write_networks
from tests.pipeline.storage.jobs import content

EXPLORE = ExploreConfig(explorer="hand-written")
"""The source is games, so that the loop needs no human datasets."""
CONFIG = FinetuneConfig(generations=3, buffer=3, games_share=1.0, explore=EXPLORE)


@pytest.fixture(scope="module")
def networks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write checkpoints 0 (the supervised one) to 7."""
    return write_networks(tmp_path_factory.mktemp("networks"))


def run_loop(
    networks: Path,
    out: Path,
    config: FinetuneConfig = CONFIG,
    script: Script | None = None,
    **options: Any,
) -> dict[str, Any]:
    stages = (script or Script(networks)).stages()
    return finetune(networks / "0", config, out, stages=stages, **options)


@pytest.fixture(scope="module")
def uninterrupted(networks: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Run three generations; return the content of their files."""
    out = tmp_path_factory.mktemp("uninterrupted") / "out"
    ticks: list[Tick] = []
    run_loop(networks, out, progress=ticks.append)
    stages = list(dict.fromkeys(tick.stage for tick in ticks))
    assert stages[0] == "generation 0: eval"
    labels = ["self-play", "train", "gate", "eval"]
    assert stages[1:5] == [f"generation 1: {label}" for label in labels]
    return content(out)


def test_the_order_of_stages_and_the_reasons_of_verdicts(networks: Path, tmp_path: Path) -> None:
    script, out = Script(networks), tmp_path / "out"
    result = run_loop(networks, out, replace(CONFIG, generations=7), script)
    order = [(number, stage) for number, stage, _, _ in script.calls]
    expected = [(0, "eval"), *[(number, stage) for number in range(1, 8) for stage in STAGES]]
    assert order == [step for step in expected if step not in ((6, "arena"), (6, "eval"))]
    explorers = [best for _, stage, best, _ in script.calls if stage == "explore"]
    assert explorers == [0, 1, 1, 1, 1, 1, 1], "the best network explores"
    buffers = [buffer for _, stage, _, buffer in script.calls if stage == "train"]
    assert buffers[0] == ("001",)
    assert buffers[3] == ("002", "003", "004"), "the last three, promoted or not"
    # only the training runs that led to the best network count
    assert script.spent == {1: {}} | {number: {"rows of 1": 1.0} for number in (2, 3, 4, 5, 7)}
    verdicts = ["promoted", "promoted", "rejected", "rejected"]
    verdicts += ["undone", "undone", "rejected", "promoted"]
    assert [row["verdict"] for row in result["rows"]] == verdicts
    for number, words in {
        1: "against human rows alone Elo +80 [+30, +130] in 100 games: a gain over the control",
        2: "not better than the best",
        3: "undecided against the best",
        4: "human top-1 fell from 0.4000 to 0.3800, by more than 0.015",
        5: "loses to the supervised network",
        6: "training failed: the loss is not finite",
        7: "Elo +40 [-10, +90] in 100 games: no significant gain over the control",
    }.items():
        assert words in result["rows"][number]["reason"]
        lines = [line for line in result["text"].splitlines() if f"generation {number}: " in line]
        assert words in lines[0]
    rows = list(csv.DictReader((out / "generations.csv").open()))
    assert [row["verdict"] for row in rows] == verdicts
    assert rows[7]["seed_elo"] == "200.0"
    assert [row["control_score"] for row in rows[5:]] == ["0.6", "", "0.55"]
    assert (result["generation"], result["against_control"]["score"]) == (7, 0.55)
    card = load(out / "best")[1]
    assert read_weights_hash(out / "best") == read_weights_hash(networks / "7")
    assert read_weights_hash(out / "seed") == read_weights_hash(networks / "0")
    assert card["finetune"]["through"] == [0, 1, 7]
    assert card["finetune"]["against_seed"]["score"] == 0.75
    assert len(list((out / "best").glob("*.safetensors"))) == 1


def test_a_verdict_without_human_positions_or_with_a_failed_control() -> None:
    accepted = match("H1", 0.6)
    stages = {"train": {}, "arena": {"best": accepted, "seed": accepted}, "eval": {"top1": 0.44}}
    assert decide(stages, {"top1": 0.4549}, 0.015).promoted
    fallen = decide(stages, {"top1": 0.4551}, 0.015)
    assert (fallen.promoted, fallen.undone) == (False, True)
    stages["arena"] |= {"control": None, "control_failed": "step 3"}
    verdict = decide(stages | {"eval": {}}, {}, 0.015)
    assert verdict.promoted
    assert verdict.reason.endswith("; the control's training failed: step 3")


def test_a_loop_that_failed_and_is_extended_equals_an_uninterrupted_one(
    networks: Path, tmp_path: Path, uninterrupted: dict[str, Any]
) -> None:
    out, script = tmp_path / "out", Script(networks)

    def fail(number: int, stage: str) -> None:
        if (number, stage) == (2, "train"):
            raise ZeroDivisionError("a bug")

    run_loop(networks, out, replace(CONFIG, generations=1))
    script.fail = fail
    with pytest.raises(ZeroDivisionError):
        run_loop(networks, out, CONFIG, script)
    before = content(out)
    assert run_loop(networks, out, replace(CONFIG, generations=1))["generations"] == 1
    assert content(out) == before
    answers = iter([False] * 4)
    with pytest.raises(Stopped, match="run the same command to continue"):
        run_loop(networks, out, stop=lambda: next(answers, True))
    assert load(out / "best")[1]["finetune"]["generation"] == 1
    resumed = Script(networks)
    run_loop(networks, out, CONFIG, resumed)
    assert resumed.calls[0][0] == 2
    assert content(out) == uninterrupted


def test_minutes_end_a_loop_and_more_minutes_continue_it(
    networks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, uninterrupted: dict[str, Any]
) -> None:
    out, clock = tmp_path / "out", 0.0

    def monotonic() -> float:
        nonlocal clock
        clock += 1.0
        return clock

    monkeypatch.setattr(loop.time, "monotonic", monotonic)
    with pytest.raises(Stopped, match=r"nothing was trained in 0\.05 minutes.*: increase minutes"):
        run_loop(networks, out, replace(CONFIG, minutes=0.05, generations=None))
    result = run_loop(networks, out, replace(CONFIG, minutes=0.5, generations=None))
    assert result["ended"] == "time limit reached"
    assert result["generations"] < 3
    assert result["minutes"] == pytest.approx(0.5, abs=0.1)
    assert (out / "best" / "checkpoint.json").exists()
    assert run_loop(networks, out, replace(CONFIG, minutes=100.0))["ended"] == "finished"
    assert content(out) == uninterrupted


def test_other_inputs_and_settings_are_refused(networks: Path, tmp_path: Path) -> None:
    base = replace(CONFIG, generations=1)
    run_loop(networks, tmp_path, base)
    before, trained_less = content(tmp_path), replace(default_training(), epochs=1.0)
    for checkpoint, config, difference in (
        ("1", base, "checkpoint.name was '0', not '1'"),
        ("0", replace(base, gate=GateConfig(simulations=9)), "config.gate.simulations was 64"),
        ("0", replace(base, train=trained_less), "config.train.epochs was 1.6"),
    ):
        with pytest.raises(FinetuneError, match="started with other inputs or settings") as refused:
            finetune(networks / checkpoint, config, tmp_path, stages=Script(networks).stages())
        assert difference in str(refused.value)
    elsewhere = replace(base, workers=2, train=replace(default_training(), threads=3))
    run_loop(networks, tmp_path, elsewhere)
    assert content(tmp_path) == before
    with pytest.raises(UserError, match="unknown engine"):
        run_loop(networks, tmp_path / "new", replace(base, engine="abacus"))
    assert not (tmp_path / "new").exists()
