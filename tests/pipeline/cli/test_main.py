"""The command line: from PGN to report, the last lines of commands, and mistakes."""

import json
import os
import shlex
from pathlib import Path
from typing import Any

import pytest

from model.network.presets import presets
from pipeline.cli.main import parse
from tests.pipeline.cli.conftest import STEPS, CommandRunner, invoke
from tests.pipeline.datasets import dump as random_dump


def test_a_network_trained_on_the_sample_beats_chance_on_unseen_games(
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
    assert 500 < report["common_rule"]["positions"] < 1000
    for name in ("ply", "legal moves", "rating"):
        assert sum(row["positions"] for row in report["slices"][name]) == 1000
    mean = sum(row["positions"] * row["top1"] for row in report["slices"]["ply"]) / 1000
    assert mean == pytest.approx(report["top1"])
    assert "test split" in report["rule"]
    folder = journey["folder"] / "report"
    assert json.loads((folder / "report.json").read_text()) == report
    assert "by legal moves" in (folder / "report.txt").read_text()
    assert (folder / "report.html").read_text().startswith("<!doctype html>")


def test_a_finished_training_is_not_changed(run: CommandRunner) -> None:
    def read_mtimes() -> dict[str, int]:
        files = (run.folder / "net").iterdir()
        return {path.name: path.stat().st_mtime_ns for path in files if path.name != ".lock"}

    before = read_mtimes()
    words = ["train", "--positions", "{positions}", "--out", "{net}"]
    assert "complete already" in run.lines(*words, *STEPS)[0]
    for options, problem in (
        (["--steps", "30", *STEPS[2:]], "40 steps, more than 30"),
        ([*STEPS, "--set", "seed=5"], "seed was"),
    ):
        code, _, error = run(*words, *options)
        assert (code, problem in error) == (2, True), error
    assert read_mtimes() == before


def test_commands_print_five_lines_and_suggest_the_next_command(
    run: CommandRunner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
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
        suggestion = shlex.split(lines[-1])
        assert suggestion[:2] == ["next:", "fianchetto"]
        parse(suggestion[2:])


def test_train_chooses_a_preset_and_only_the_first_process_prints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[Any] = []
    card: dict[str, Any] = dict.fromkeys(("parameters", "step", "positions", "seconds"), 1)
    card |= {"message": "", "preset": {"name": "x"}, "metrics": {}, "finished": True}

    def train_on_datasets(
        _: object, preset: str, *more: object, start: Path | None, shares: object
    ) -> Any:
        calls.append((preset, start))
        return card

    def read_card(folder: Path) -> Any:
        return {"preset": {"name": f"of {folder.name}"}}

    monkeypatch.setattr("pipeline.training.train.train_on_datasets", train_on_datasets)
    monkeypatch.setattr("model.checkpoint.read_card", read_card)
    (tmp_path / "resumed").mkdir()
    (tmp_path / "resumed" / "checkpoint.json").touch()
    train = ["train", "--positions", "x", "--steps", "1", "--json", "--out"]
    for options in (["y"], ["y", "--start", "old"], [str(tmp_path / "resumed")]):
        assert json.loads(invoke(*train, *options)[1])["out"] == options[0]
    assert calls == [("fianchetto-human", None), ("of old", Path("old")), ("of resumed", None)]
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    assert invoke(*train, "y", "--preset", "bishop")[:2] == (0, "")
    assert calls[-1] == ("bishop", None)


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
def test_a_mistake_prints_one_line_exits_with_2_and_writes_no_file(
    line: str, run: CommandRunner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("in the way")
    words, _, expected = line.partition(" | ")
    code, out, error = run(*(word.replace("_w_-_-_0_1", " w - - 0 1") for word in words.split()))
    assert (code, out, error.count("\n")) == (2, "", 1)
    assert error.startswith("fianchetto: ")
    assert expected in error
    assert os.listdir() == ["file"], "no file is created"  # noqa: PTH208


def test_presets_lists_networks_with_their_sizes(
    run: CommandRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = presets()["fianchetto-xs"]
    monkeypatch.setattr("model.network.presets.presets", lambda: {row.name: row})
    (listed,) = run.json("presets")["presets"]
    assert (listed["preset"], listed["parameters"]) == ("fianchetto-xs", 578_691)
    # Counted by hand: the stem, 6 blocks of two convolutions, and 1x1 convolutions to 64 policy
    # planes and 16 value channels, on 64 squares; then the linear layers of gates and value. A
    # multiplication with addition counts as two operations.
    convolutions = 64 * (77 * 64 * 9 + 6 * 2 * 64 * 64 * 9 + 64 * 64 + 64 * 16)
    linears = 6 * (64 * 16 + 16 * 128 + 64 * 64) + 16 * 64 * 64 + 64 * 3
    assert listed["flops"] == 2 * (convolutions + linears)
