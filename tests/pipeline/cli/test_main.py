"""The command line: one journey from PGN to report, then every kind of mistake."""

import json
import os
import shlex
from pathlib import Path
from typing import Any

import pytest

from model.network.presets import presets
from pipeline.cli.main import parse
from tests.pipeline.cli.conftest import STEPS, Run, invoke
from tests.pipeline.datasets import dump as random_dump


def test_the_sample_becomes_a_network_that_beats_chance_on_unseen_games(
    journey: dict[str, Any],
) -> None:
    manifest, report = journey["ingest"], journey["report"]
    assert manifest["games"] == {"read": 2000, "used": 2000, "dropped": {}}
    splits = manifest["positions"]
    assert splits["total"] == sum(splits[split] for split in ("train", "val", "test"))
    assert "of 2,000 games" in (journey["folder"] / "positions" / "CARD.md").read_text()
    assert journey["train"]["step"] == 40
    assert report["positions"] == 1000
    assert report["top1"] > 1.5 * report["chance_top1"]
    assert report["top1_low"] < report["top1"] < report["top1_high"]
    assert report["top1"] < report["top3"] < report["top5"]
    assert 0 < report["legal_mass"] < 1
    assert "test split" in report["rule"]
    assert 500 < report["common_rule"]["positions"] < 1000
    for name in ("ply", "legal moves", "rating"):
        assert sum(row["positions"] for row in report["slices"][name]) == 1000
    rows = report["slices"]["ply"]
    mean = sum(row["positions"] * row["top1"] for row in rows) / 1000
    assert mean == pytest.approx(report["top1"])
    folder = journey["folder"] / "report"
    assert json.loads((folder / "report.json").read_text()) == report
    assert "by legal moves" in (folder / "report.txt").read_text()
    assert (folder / "report.html").read_text().startswith("<!doctype html>")


def test_a_finished_run_says_so_and_changes_nothing(run: Run) -> None:
    def times() -> dict[str, int]:
        files = (run.folder / "net").iterdir()
        return {path.name: path.stat().st_mtime_ns for path in files if path.name != ".lock"}

    before = times()
    words = ["train", "--positions", "{positions}", "--out", "{net}"]
    assert "complete already" in run.lines(*words, *STEPS)[0]
    for less, why in (
        (["--steps", "30", *STEPS[2:]], "40 steps, more than 30"),
        ([*STEPS, "--set", "seed=5"], "seed was"),
    ):
        code, _, error = run(*words, *less)
        assert (code, why in error) == (2, True), error
    assert times() == before


def test_commands_end_with_few_lines_and_the_next_command(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.evaluation.render.render_report", lambda *_: b"")
    random_dump(tmp_path / "dump.pgn", 40)
    report = ["--checkpoint", "{net}", "--positions", "{positions}", "--limit", "50"]
    ingest = ["ingest", str(tmp_path / "dump.pgn"), "--out", str(tmp_path / "first")]
    first = run.lines(*ingest, "--workers", "1")
    again = run.lines(*ingest, "--workers", "1")
    joined = run.lines("join", "{positions}", "--out", str(tmp_path / "set"))
    reported = run.lines("report", *report, "--out", str(tmp_path / "r"))
    assert first[1] == "40 of 40 games are used"
    assert "complete already" in again[0]
    assert again[1:] == first[1:]
    for lines in (first, again, joined[-5:], reported):
        assert len(lines) == 5
        following = shlex.split(lines[-1])
        assert following[:2] == ["next:", "fianchetto"]
        parse(following[2:])


def test_the_default_preset_and_output_of_one_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    card: dict[str, Any] = dict.fromkeys(("parameters", "step", "positions", "seconds"), 1)
    card |= {"message": "", "preset": {"name": "x"}, "metrics": {}, "finished": True}

    def train_on(*given: Any, start: Path | None, shares: Any) -> dict[str, Any]:
        asked.append((given[1], start))
        return card

    monkeypatch.setattr("pipeline.training.train.train_on", train_on)
    monkeypatch.setattr(
        "model.checkpoint.read_card", lambda path: {"preset": {"name": f"of {path.name}"}}
    )
    words = ["train", "--positions", "x", "--steps", "1", "--json"]
    begun, seed = tmp_path / "begun", Path("seed")
    begun.mkdir()
    (begun / "checkpoint.json").touch()
    for more in (["--out", "y"], ["--out", "y", "--start", "seed"], ["--out", str(begun)]):
        assert json.loads(invoke(*words, *more)[1]) | {"finished": True} == card | {"out": more[1]}
    assert asked == [("fianchetto-human", None), ("of seed", seed), ("of begun", None)]
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    assert invoke(*words, "--out", "y", "--preset", "bishop")[:2] == (0, "")
    assert asked[-1] == ("bishop", None)


MISTAKES = """
ingest nowhere.pgn --out x | nowhere.pgn does not exist
train --positions x --out y --steps 1 | x is not a directory
train --positions x --out y --steps 1 --preset fianchetto-sx | fianchetto-xs
report --checkpoint x --positions y | x
report --checkpoint x | positions
show 8/8/8/8/8/8/8/8_w_-_-_0_1 | king
show startpos --view maro77 | did you mean 'marro77'
report --checkpoint {net} --positions {positions} --out file/report | file is a file
join {positions} --out file | file
uci --checkpoint {net} --evaluator uniform | evaluator
arena {net} uniform,simulations=0 --out x | simulations
arena {net} uniform uci:no-engine,nodes=1 --out x | no-engine cannot be started
finetune --checkpoint {net} --positions {positions} --out x --generations 1 --set train.momentum=2 \
| momentum
"""


@pytest.mark.parametrize("line", MISTAKES.strip().replace("\\\n", "").splitlines())
def test_a_mistake_is_one_line_and_exit_2_before_any_work(
    line: str, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("in the way")
    words, _, expected = line.partition(" | ")
    code, out, error = run(*(word.replace("_w_-_-_0_1", " w - - 0 1") for word in words.split()))
    assert (code, out, error.count("\n")) == (2, "", 1)
    assert error.startswith("fianchetto: ")
    assert expected in error
    assert os.listdir() == ["file"], "no file is created"  # noqa: PTH208


def test_networks_are_listed_with_their_sizes(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    row = presets()["fianchetto-xs"]
    monkeypatch.setattr("model.network.presets.presets", lambda: {row.name: row})
    (listed,) = run.json("presets")["presets"]
    assert (listed["preset"], listed["parameters"]) == ("fianchetto-xs", 578_691)
    # By hand: stem, 6 blocks of two convolutions, 64 policy planes and 16 value channels of 1x1, on
    # 64 squares; then linear layers of gates and value. A multiply-add is two.
    convolutions = 64 * (77 * 64 * 9 + 6 * 2 * 64 * 64 * 9 + 64 * 64 + 64 * 16)
    linears = 6 * (64 * 16 + 16 * 128 + 64 * 64) + 16 * 64 * 64 + 64 * 3
    assert listed["flops"] == 2 * (convolutions + linears)
