"""The machine: what follows what, who is best, killed at every write, refused where it must be. Its
stages follow a script."""

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
from pipeline.finetune import loop, outputs
from pipeline.finetune.config import FinetuneConfig, GateConfig, default_training
from pipeline.finetune.loop import finetune
from pipeline.finetune.state import FinetuneError
from pipeline.selfplay.config import ExploreConfig
from tests.pipeline.finetune.fakes import SCRIPT, Script, networks

PLAYED = ExploreConfig(explorer="hand-written")
"""Whose games need no human datasets; the stages are a script's in any case."""
THREE = FinetuneConfig(generations=3, buffer=3, games_share=1.0, explore=PLAYED)
SEVEN = replace(THREE, generations=7)
STAGES = ("explore", "train", "arena", "eval")


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Checkpoints 0 (the seed) to 7."""
    return networks(tmp_path_factory.mktemp("networks") / "made")


def run(
    made: Path, out: Path, config: FinetuneConfig = THREE, script: Script | None = None
) -> dict[str, Any]:
    return finetune(made / "0", config, out, stages=(script or Script(made)).stages())


def test_an_engine_that_is_none_is_said_before_any_time_is_spent(
    made: Path, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match="an engine is local, ray"):
        run(made, tmp_path / "out", replace(THREE, engine="abacus"))
    assert not (tmp_path / "out").exists()


def weights(directory: Path) -> str:
    return str(read_card(directory)["files"]["weights"]["sha256"])


def timeless(out: Path) -> dict[str, Any]:
    """Give the content of every file of a loop, without what tells times."""
    found: dict[str, Any] = {}
    for path in sorted(out.rglob("*")):
        name = path.relative_to(out).as_posix()
        if path.is_file() and path.name != ".lock":
            found[name] = hashlib.sha256(path.read_bytes()).hexdigest()
    state = json.loads((out / "state.json").read_text())
    for record in state["generations"]:
        record.pop("seconds")
    found["state.json"] = state["generations"]
    rows = csv.DictReader((out / "generations.csv").open())
    found["generations.csv"] = [
        {name: value for name, value in row.items() if not name.startswith("seconds")}
        for row in rows
    ]
    return found


@pytest.fixture(scope="module")
def undisturbed(made: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Three generations, left alone."""
    out = tmp_path_factory.mktemp("undisturbed") / "out"
    run(made, out)
    return timeless(out)


def test_stages_follow_each_other_and_the_best_explores(made: Path, tmp_path: Path) -> None:
    script = Script(made)
    result = run(made, tmp_path / "out", SEVEN, script)
    order = [(number, stage) for number, stage, _, _ in script.seen]
    expected = [(0, "eval"), *[(number, stage) for number in range(1, 8) for stage in STAGES]]
    assert order == [step for step in expected if step not in ((6, "arena"), (6, "eval"))]
    assert [best for number, stage, best, _ in script.seen if stage == "explore"] == [
        0,
        1,
        1,
        1,
        1,
        1,
        1,
    ]
    buffers = [buffer for _, stage, _, buffer in script.seen if stage == "train"]
    assert buffers[0] == ("001",)
    assert buffers[3] == ("002", "003", "004"), (
        "the buffer is the last three generations, whoever was promoted"
    )
    assert script.spent == {1: {}} | {number: {"rows of 1": 1.0} for number in (2, 3, 4, 5, 7)}, (
        "only what led to the best counts"
    )
    assert result["generation"] == 7
    assert weights(tmp_path / "out" / "best") == weights(made / "7")


def test_every_verdict_says_why(made: Path, tmp_path: Path) -> None:
    result = run(made, tmp_path / "out", SEVEN)
    verdicts = [
        "promoted",
        "promoted",
        "rejected",
        "rejected",
        "undone",
        "undone",
        "rejected",
        "promoted",
    ]
    assert [row["verdict"] for row in result["rows"]] == verdicts
    for number, words in {
        2: "not better than the best",
        3: "undecided against the best",
        4: "human top-1 fell from 0.4000 to 0.3800, more than 0.015",
        5: "loses to the seed",
        6: "training failed: the loss is not finite",
        1: "against human rows alone Elo +80 [+30, +130] in 100 games: a gain over the control",
        7: "against human rows alone Elo +40 [-10, +90] in 100 games: no significant gain over the "
        "control",
    }.items():
        assert words in result["rows"][number]["reason"]
        assert any(
            words in line
            for line in result["text"].splitlines()
            if f"generation {number}: " in line
        )
    rows = list(csv.DictReader((tmp_path / "out" / "generations.csv").open()))
    assert [row["verdict"] for row in rows] == verdicts
    assert rows[7]["seed_elo"] == "200.0"
    assert [row["control_score"] for row in rows[5:]] == ["0.6", "", "0.55"]
    assert result["against_control"]["score"] == 0.55


def test_progress_names_the_generation_and_its_stage(made: Path, tmp_path: Path) -> None:
    ticks: list[Tick] = []
    finetune(
        made / "0", THREE, tmp_path / "out", stages=Script(made).stages(), progress=ticks.append
    )
    assert list(dict.fromkeys(tick.stage for tick in ticks))[:6] == [
        "generation 0: eval",
        "generation 1: self-play",
        "generation 1: train",
        "generation 1: gate",
        "generation 1: eval",
        "generation 2: self-play",
    ]


def test_a_generation_that_is_undone_gives_the_best_back(made: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    held = []
    for generations in range(1, 8):
        run(made, out, replace(THREE, generations=generations))
        held.append(weights(out / "best"))
        network, card = load(out / "best")
        assert card["finetune"]["generation"] == (7 if generations == 7 else 1)
        assert network.preset.name == "tiny"
    assert held == [weights(made / "1")] * 6 + [weights(made / "7")]
    assert card["finetune"]["through"] == [0, 1, 7]
    assert card["finetune"]["against_seed"]["score"] == 0.75
    assert len(list((out / "best").glob("*.safetensors"))) == 1
    assert weights(out / "seed") == weights(made / "0")


def test_more_generations_are_as_if_asked_for_at_once(
    made: Path, tmp_path: Path, undisturbed: dict[str, Any]
) -> None:
    for generations in (1, 2, 3):
        run(made, tmp_path / "out", replace(THREE, generations=generations))
    found = timeless(tmp_path / "out")
    assert found == undisturbed


def test_a_generation_that_was_begun_waits_until_as_many_are_asked_for(
    made: Path, tmp_path: Path, undisturbed: dict[str, Any]
) -> None:
    run(made, tmp_path / "out", replace(THREE, generations=1))
    script = Script(made)

    def fail(number: int, stage: str) -> None:
        if (number, stage) == (2, "train"):
            raise UserError("no room")

    script.fail = fail
    with pytest.raises(UserError, match="no room"):
        run(made, tmp_path / "out", THREE, script)
    before = timeless(tmp_path / "out")
    assert run(made, tmp_path / "out", replace(THREE, generations=1))["generations"] == 1
    assert timeless(tmp_path / "out") == before
    run(made, tmp_path / "out")
    assert timeless(tmp_path / "out") == undisturbed


def test_weights_that_were_replaced_are_deleted_though_the_process_was_killed_before(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    best = tmp_path / "best"
    outputs.promote(made / "0", best, {"generation": 0})
    with monkeypatch.context() as killed:
        killed.setattr("model.checkpoint.delete_superseded", lambda directory, card: None)
        outputs.promote(made / "1", best, {"generation": 1})
    assert len(list(best.glob("weights-*"))) == 2
    outputs.promote(made / "1", best, {"generation": 1})
    assert [path.name for path in best.glob("weights-*")] == [
        read_card(best)["files"]["weights"]["name"]
    ]


def test_a_failing_stage_leaves_what_was_done(
    made: Path, tmp_path: Path, undisturbed: dict[str, Any]
) -> None:
    script = Script(made)

    def fail(number: int, stage: str) -> None:
        if (number, stage) == (2, "train"):
            raise ZeroDivisionError("a bug")

    script.fail = fail
    with pytest.raises(ZeroDivisionError):
        run(made, tmp_path / "out", THREE, script)
    again = Script(made)
    run(made, tmp_path / "out", THREE, again)
    assert again.seen[0][:2] == (2, "train")
    assert timeless(tmp_path / "out") == undisturbed


def test_asked_to_stop_it_stops_inside_a_stage_and_goes_on(
    made: Path, tmp_path: Path, undisturbed: dict[str, Any]
) -> None:
    asked = 0

    def stop() -> bool:
        nonlocal asked
        asked += 1
        return asked > 12

    with pytest.raises(Stopped, match="run the same command to continue"):
        finetune(made / "0", THREE, tmp_path / "out", stages=Script(made).stages(), stop=stop)
    assert 0 < len(json.loads((tmp_path / "out" / "state.json").read_text())["generations"]) < 4
    assert load(tmp_path / "out" / "best")[1]["finetune"]["generation"] in (0, 1)
    run(made, tmp_path / "out")
    assert timeless(tmp_path / "out") == undisturbed


def test_minutes_end_a_loop_and_more_minutes_go_on(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, undisturbed: dict[str, Any]
) -> None:
    clock = 0.0

    def monotonic() -> float:
        nonlocal clock
        clock += 1.0
        return clock

    monkeypatch.setattr(loop.time, "monotonic", monotonic)
    with pytest.raises(Stopped, match=r"nothing was trained in 0\.05 minutes.*: add minutes"):
        run(made, tmp_path / "out", replace(THREE, minutes=0.05, generations=None))
    result = run(made, tmp_path / "out", replace(THREE, minutes=0.5, generations=None))
    assert result["ended"] == "its minutes are over"
    assert result["generations"] < 3
    assert result["minutes"] == pytest.approx(0.5, abs=0.1)
    assert (tmp_path / "out" / "best" / "checkpoint.json").exists()
    longer = run(made, tmp_path / "out", replace(THREE, minutes=100.0))
    assert longer["ended"] == "finished"
    assert timeless(tmp_path / "out") == undisturbed


TRAINED_LESS = replace(default_training(), epochs=1.0)


def test_another_loop_is_refused_by_name(made: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    run(made, out)
    before = timeless(out)
    for checkpoint, config, named in (
        ("1", THREE, "checkpoint.name was '0', not '1'"),
        ("0", replace(THREE, buffer=2), "config.buffer was 3, not 2"),
        ("0", replace(THREE, gate=GateConfig(simulations=9)), "config.gate.simulations was 64"),
        (
            "0",
            replace(THREE, train=TRAINED_LESS),
            "config.train.epochs was 1.6",
        ),
    ):
        with pytest.raises(
            FinetuneError, match="was started with other inputs or settings"
        ) as told:
            finetune(made / checkpoint, config, out, stages=Script(made).stages())
        assert named in str(told.value)
    run(made, out, replace(THREE, workers=2, train=replace(default_training(), threads=3)))
    assert timeless(out) == before


def test_the_script_covers_every_verdict() -> None:
    assert {told.get("gate", "failed") for told in SCRIPT.values()} == {
        "H0",
        "H1",
        "undecided",
        "failed",
    }


def test_a_state_that_cannot_be_read_is_refused(made: Path, tmp_path: Path) -> None:
    run(made, tmp_path)
    for text, words in (("[]", "cannot be resumed"), ('{"format_version": 1}', "should be 2")):
        (tmp_path / "state.json").write_text(text)
        with pytest.raises(FinetuneError, match=words):
            run(made, tmp_path)
