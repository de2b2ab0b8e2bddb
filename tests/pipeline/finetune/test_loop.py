"""The loop as a state machine: order of stages, the best network, stops and refusals. Its stages
follow a script."""

import csv
import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engine.errors import UserError
from engine.progress import Tick
from model.checkpoint import load, read_card
from pipeline.errors import Stopped
from pipeline.finetune import loop
from pipeline.finetune.config import FinetuneConfig, GateConfig, default_training
from pipeline.finetune.loop import finetune
from pipeline.finetune.stages import decide
from pipeline.finetune.state import STAGES, FinetuneError
from pipeline.selfplay.config import ExploreConfig
from tests.pipeline.finetune.fakes import Script, match, networks

PLAYED = ExploreConfig(explorer="hand-written")
"""Games need no human datasets; the stages are scripted in any case."""
THREE = FinetuneConfig(generations=3, buffer=3, games_share=1.0, explore=PLAYED)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Checkpoints 0 (the seed) to 7."""
    return networks(tmp_path_factory.mktemp("networks") / "made")


def run(
    made: Path, out: Path, config: FinetuneConfig = THREE, script: Script | None = None, **more: Any
) -> dict[str, Any]:
    return finetune(made / "0", config, out, stages=(script or Script(made)).stages(), **more)


def weights(directory: Path) -> str:
    return str(read_card(directory)["files"]["weights"]["sha256"])


def timeless(out: Path) -> dict[str, Any]:
    """Return the content of every file of a loop, without what tells times."""
    found: dict[str, Any] = {}
    for path in sorted(out.rglob("*")):
        name = path.relative_to(out).as_posix()
        if path.is_file() and path.name not in (".lock", "generations.csv"):
            found[name] = hashlib.sha256(path.read_bytes()).hexdigest()
    found["state.json"] = json.loads((out / "state.json").read_text())["generations"]
    for record in found["state.json"]:
        record.pop("seconds")
    return found


@pytest.fixture(scope="module")
def undisturbed(made: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Three generations, left alone."""
    out = tmp_path_factory.mktemp("undisturbed") / "out"
    ticks: list[Tick] = []
    run(made, out, progress=ticks.append)
    stages = list(dict.fromkeys(tick.stage for tick in ticks))
    assert stages[0] == "generation 0: eval"
    named = ["self-play", "train", "gate", "eval"]
    assert stages[1:5] == [f"generation 1: {name}" for name in named]
    return timeless(out)


def test_the_order_of_stages_and_the_reasons_of_verdicts(made: Path, tmp_path: Path) -> None:
    script, out = Script(made), tmp_path / "out"
    result = run(made, out, replace(THREE, generations=7), script)
    order = [(number, stage) for number, stage, _, _ in script.seen]
    expected = [(0, "eval"), *[(number, stage) for number in range(1, 8) for stage in STAGES]]
    assert order == [step for step in expected if step not in ((6, "arena"), (6, "eval"))]
    explorers = [best for _, stage, best, _ in script.seen if stage == "explore"]
    assert explorers == [0, 1, 1, 1, 1, 1, 1], "the best network explores"
    buffers = [buffer for _, stage, _, buffer in script.seen if stage == "train"]
    assert buffers[0] == ("001",)
    assert buffers[3] == ("002", "003", "004"), "the last three, whoever was promoted"
    assert script.spent == {1: {}} | {number: {"rows of 1": 1.0} for number in (2, 3, 4, 5, 7)}, (
        "only what led to the best counts"
    )
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
    assert weights(out / "best") == weights(made / "7")
    assert weights(out / "seed") == weights(made / "0")
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


def test_a_loop_that_fails_and_is_extended_equals_an_undisturbed_one(
    made: Path, tmp_path: Path, undisturbed: dict[str, Any]
) -> None:
    out, script = tmp_path / "out", Script(made)

    def fail(number: int, stage: str) -> None:
        if (number, stage) == (2, "train"):
            raise ZeroDivisionError("a bug")

    run(made, out, replace(THREE, generations=1))
    script.fail = fail
    with pytest.raises(ZeroDivisionError):
        run(made, out, THREE, script)
    before = timeless(out)
    assert run(made, out, replace(THREE, generations=1))["generations"] == 1
    assert timeless(out) == before
    asked = iter([False] * 4)
    with pytest.raises(Stopped, match="run the same command to continue"):
        run(made, out, stop=lambda: next(asked, True))
    assert load(out / "best")[1]["finetune"]["generation"] == 1
    again = Script(made)
    run(made, out, THREE, again)
    assert again.seen[0][0] == 2
    assert timeless(out) == undisturbed


def test_minutes_end_a_loop_and_more_minutes_continue_it(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, undisturbed: dict[str, Any]
) -> None:
    out, clock = tmp_path / "out", 0.0

    def monotonic() -> float:
        nonlocal clock
        clock += 1.0
        return clock

    monkeypatch.setattr(loop.time, "monotonic", monotonic)
    with pytest.raises(Stopped, match=r"nothing was trained in 0\.05 minutes.*: increase minutes"):
        run(made, out, replace(THREE, minutes=0.05, generations=None))
    result = run(made, out, replace(THREE, minutes=0.5, generations=None))
    assert result["ended"] == "time limit reached"
    assert result["generations"] < 3
    assert result["minutes"] == pytest.approx(0.5, abs=0.1)
    assert (out / "best" / "checkpoint.json").exists()
    longer = run(made, out, replace(THREE, minutes=100.0))
    assert longer["ended"] == "finished"
    assert timeless(out) == undisturbed


def test_another_loop_and_an_unreadable_state_are_refused(made: Path, tmp_path: Path) -> None:
    one = replace(THREE, generations=1)
    run(made, tmp_path, one)
    before, trained_less = timeless(tmp_path), replace(default_training(), epochs=1.0)
    for checkpoint, config, named in (
        ("1", one, "checkpoint.name was '0', not '1'"),
        ("0", replace(one, gate=GateConfig(simulations=9)), "config.gate.simulations was 64"),
        ("0", replace(one, train=trained_less), "config.train.epochs was 1.6"),
    ):
        with pytest.raises(FinetuneError, match="started with other inputs or settings") as refused:
            finetune(made / checkpoint, config, tmp_path, stages=Script(made).stages())
        assert named in str(refused.value)
    run(made, tmp_path, replace(one, workers=2, train=replace(default_training(), threads=3)))
    assert timeless(tmp_path) == before
    for text, words in (("[]", "cannot be resumed"), ('{"format_version": 1}', "should be 2")):
        (tmp_path / "state.json").write_text(text)
        with pytest.raises(FinetuneError, match=words):
            run(made, tmp_path, one)
    with pytest.raises(UserError, match="unknown engine"):
        run(made, tmp_path / "new", replace(one, engine="abacus"))
    assert not (tmp_path / "new").exists()
