"""The machine: what follows what, who is best, killed at every write, refused where it must be. Its
stages follow a script."""

import csv
import errno
import hashlib
import json
import os
import random
import signal
import stat
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from engine.errors import UserError
from engine.progress import Tick
from model.checkpoint import load, read_card
from pipeline.errors import Stopped
from pipeline.finetune import loop, outputs
from pipeline.finetune.config import FinetuneConfig, GateConfig, TuneConfig
from pipeline.finetune.loop import finetune
from pipeline.finetune.state import FinetuneError
from pipeline.selfplay.config import ExploreConfig
from tests.pipeline.finetune.fakes import SCRIPT, Script, forked, networks

PLAYED = ExploreConfig(explorer="hand-written")
"""Whose games need no human datasets; the stages are a script's in any case."""
THREE = FinetuneConfig(generations=3, buffer=3, games_share=1.0, explore=PLAYED)
SEVEN = replace(THREE, generations=7)
STAGES = ("explore", "train", "arena", "eval")


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Checkpoints 0 (the seed) to 7."""
    return networks(tmp_path_factory.mktemp("networks") / "made")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw nothing."""
    monkeypatch.setattr(outputs, "draw_curves", lambda rows: b"picture")


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
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(outputs, "draw_curves", lambda rows: b"picture")
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


def fsyncs(work: Callable[[], Any], at: int, deed: Callable[[], None]) -> int:
    """Do work, and a deed instead of the `at`-th fsync of a file; gives how many there were."""
    real, count = os.fsync, 0

    def fsync(descriptor: int) -> None:
        nonlocal count
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            count += 1
            if count == at:
                deed()
        real(descriptor)

    os.fsync = fsync
    try:
        work()
    finally:
        os.fsync = real
    return count


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_killed_at_any_write_it_ends_where_an_undisturbed_loop_does(
    made: Path, tmp_path: Path, undisturbed: dict[str, Any]
) -> None:
    writes = fsyncs(lambda: run(made, tmp_path / "counted"), 0, kill)
    assert writes > 60
    every = list(range(1, writes + 1, 11))
    for at in every:
        out = tmp_path / f"killed-{at}"
        assert (
            forked(lambda at=at, out=out: fsyncs(lambda: run(made, out), at, kill))
            == -signal.SIGKILL
        )  # type: ignore[misc]
        run(made, out)
        assert timeless(out) == undisturbed, f"killed at write {at}"


@pytest.mark.slow
def test_killed_at_every_write_and_again_at_the_next(
    made: Path, tmp_path: Path, undisturbed: dict[str, Any]
) -> None:
    writes = fsyncs(lambda: run(made, tmp_path / "counted"), 0, kill)
    for at in range(1, writes + 1):
        out = tmp_path / f"killed-{at}"
        assert (
            forked(lambda at=at, out=out: fsyncs(lambda: run(made, out), at, kill))
            == -signal.SIGKILL
        )  # type: ignore[misc]
        forked(lambda at=at, out=out: fsyncs(lambda: run(made, out), 1 + at % 5, kill))  # type: ignore[misc]
        run(made, out)
        assert timeless(out) == undisturbed, f"killed at write {at}"


@pytest.mark.slow
def test_a_hundred_random_kills(made: Path, tmp_path: Path, undisturbed: dict[str, Any]) -> None:
    chance, kills, loops = random.Random(5), 0, 0
    began = time.monotonic()
    assert forked(lambda: run(made, tmp_path / "timed")) == 0  # type: ignore[arg-type,return-value]
    length = time.monotonic() - began
    while kills < 100:
        out = tmp_path / str(loops)
        while True:
            child = os.fork()
            if child == 0:
                run(made, out)
                os._exit(0)
            time.sleep(chance.uniform(0.0, 0.6 * length))
            os.kill(child, signal.SIGKILL)
            if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0:
                break
            kills += 1
        run(made, out)
        assert timeless(out) == undisturbed, f"loop {loops}, after {kills} kills in all"
        loops += 1


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


def test_a_full_disk_is_one_clear_line_and_the_loop_goes_on(
    made: Path, tmp_path: Path, undisturbed: dict[str, Any]
) -> None:
    def full() -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    for at in (1, 3, 8, 21, 34, 55):
        out = tmp_path / str(at)
        with pytest.raises(UserError, match="No space left on device") as told:
            fsyncs(lambda out=out: run(made, out), at, full)  # type: ignore[misc]
        assert "\n" not in str(told.value)
        run(made, out)
        assert timeless(out) == undisturbed


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


def test_another_loop_is_refused_by_name(made: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    run(made, out)
    before = timeless(out)
    for checkpoint, config, named in (
        ("1", THREE, "checkpoint.name was '0', not '1'"),
        ("0", replace(THREE, buffer=2), "config.buffer was 3, not 2"),
        ("0", replace(THREE, gate=GateConfig(simulations=9)), "config.gate.simulations was 64"),
        ("0", replace(THREE, train=TuneConfig(epochs=1)), "config.train.epochs was 1.6"),
    ):
        with pytest.raises(
            FinetuneError, match="was started with other inputs or settings"
        ) as told:
            finetune(made / checkpoint, config, out, stages=Script(made).stages())
        assert named in str(told.value)
    run(made, out, replace(THREE, workers=2, train=TuneConfig(threads=3)))
    assert timeless(out) == before


def test_two_loops_on_one_directory_refuse_each_other(made: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    with (
        FileLock(tmp_path / "out" / ".lock"),
        pytest.raises(FinetuneError, match="another fine-tuning is at work"),
    ):
        run(made, tmp_path / "out")


def test_strange_directories_are_left_alone(made: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "thesis.tex").write_text("years of work")
    with pytest.raises(FinetuneError, match=r"holds .thesis.tex., which is not of a fine-tuning"):
        run(made, out)
    assert [path.name for path in out.iterdir()] == ["thesis.tex"]
    other = tmp_path / "other"
    run(made, other)
    for name, text, words in (
        ("state.json", "[]", "cannot be resumed"),
        ("state.json", '{"format_version": 1}', "format_version: input should be 2"),
        ("finetune.json", "{}", "was started with other inputs or settings"),
    ):
        kept = (other / name).read_bytes()
        (other / name).write_text(text)
        with pytest.raises(FinetuneError, match=words):
            run(made, other)
        (other / name).write_bytes(kept)


def test_the_script_covers_every_verdict() -> None:
    assert {told.get("gate", "failed") for told in SCRIPT.values()} == {
        "H0",
        "H1",
        "undecided",
        "failed",
    }
