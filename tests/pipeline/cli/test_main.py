"""The command line as a person and a program use it: one journey from PGN to report, then every
kind of mistake."""

import json
import os
import pty
import re
import shlex
import subprocess
import termios
from pathlib import Path
from typing import Any

import chess
import pytest

from pipeline.cli.main import parse
from pipeline.dataset.files.shards import read_manifest
from tests.pipeline.cli.conftest import COMMAND, SAMPLE, STEPS, call
from tests.pipeline.datasets import dump as random_dump

FINETUNE = [
    "finetune",
    "--checkpoint",
    "{net}",
    "--positions",
    "{positions}",
    "--out",
    "x",
    "--generations",
    "1",
]


def test_ingest_uses_every_game_of_the_sample(journey: dict[str, Any]) -> None:
    manifest = journey["ingest"]
    assert manifest["games"] == {"read": 2000, "used": 2000, "dropped": {}}
    assert manifest["positions"]["total"] == sum(
        manifest["positions"][split] for split in ("train", "val", "test")
    )
    card = (journey["folder"] / "positions" / "CARD.md").read_text()
    assert "of 2,000 games" in card
    assert "fianchetto_sample_2000.pgn.zst" in card


def test_a_few_steps_of_training_beat_chance_on_unseen_games(journey: dict[str, Any]) -> None:
    report = journey["report"]
    assert journey["train"]["step"] == 60
    assert report["positions"] == 2000
    assert report["top1"] > 1.5 * report["chance_top1"]
    assert report["top1_low"] < report["top1"] < report["top1_high"]
    assert report["top1"] < report["top3"] < report["top5"]
    assert 0 < report["legal_mass"] < 1
    assert "every ply" in report["rule"]
    assert "test split" in report["rule"]
    assert "from ply 10 on" in report["common_rule"]["rule"]
    assert 1000 < report["common_rule"]["positions"] < 2000
    assert report["reads"] == []


def test_a_report_is_written_for_people_too(journey: dict[str, Any]) -> None:
    folder = journey["folder"] / "report"
    assert json.loads((folder / "report.json").read_text()) == journey["report"]
    assert "by legal moves" in (folder / "report.txt").read_text()
    assert (folder / "report.html").read_text().startswith("<!doctype html>")


def test_slices_add_up_to_the_whole(journey: dict[str, Any]) -> None:
    report = journey["report"]
    for name in ("ply", "legal moves", "rating"):
        rows = report["slices"][name]
        assert sum(row["positions"] for row in rows) == report["positions"]
    rows = report["slices"]["ply"]
    mean = sum(row["positions"] * row["top1"] for row in rows) / report["positions"]
    assert mean == pytest.approx(report["top1"])


def test_a_report_on_a_pgn_counts_its_positions_under_the_rule(
    journey: dict[str, Any],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    moves = "1. e4 e5 2. Nf3 Nc6 3. Bb5 a6 4. Ba4 Nf6 5. O-O Be7 6. Re1 b5 7. Bb3 d6"
    pgn = tmp_path / "two.pgn"
    pgn.write_text(f'[Result "1-0"]\n\n{moves} 1-0\n\n[Result "0-1"]\n\n1. f3 e5 2. g4 Qh4# 0-1\n')
    words = ["report", "--checkpoint", str(journey["folder"] / "net"), "--pgn", str(pgn), "--json"]
    code, out, _ = call(capsys, monkeypatch, *words)
    assert code == 0
    assert json.loads(out)["positions"] == 18
    _, out, _ = call(capsys, monkeypatch, *words, "--min-ply", "4")
    assert json.loads(out)["positions"] == 10


def test_a_finished_run_says_so_and_changes_nothing(
    journey: dict[str, Any], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = journey["folder"]
    before = {
        path.name: path.stat().st_mtime_ns
        for path in (folder / "net").iterdir()
        if path.name != ".lock"
    }
    words = [
        "train",
        "--positions",
        str(folder / "positions"),
        "--out",
        str(folder / "net"),
        *STEPS,
        "--json",
    ]
    code, out, _ = call(capsys, monkeypatch, *words)
    assert code == 0
    assert "finished already" in json.loads(out)["message"]
    ended = call(capsys, monkeypatch, *words[:-1])[1].splitlines()
    assert len(ended) == 5
    assert ended[0] == f"{folder / 'net'} is complete already: nothing was done"
    assert (
        ended[-1] == f"next: fianchetto report --checkpoint {folder / 'net'} --positions "
        f"{folder / 'positions'}"
    )
    for less, why in (
        (["--steps", "30", *STEPS[2:]], "60 steps, more than 30"),
        ([*STEPS, "--set", "seed=5"], "seed was"),
    ):
        code, _, err = call(capsys, monkeypatch, *words[:5], *less)
        assert (code, why in err) == (2, True), err
    after = {
        path.name: path.stat().st_mtime_ns
        for path in (folder / "net").iterdir()
        if path.name != ".lock"
    }
    assert after == before, "but the lock, which some versions of filelock touch"


def test_commands_end_with_few_lines_and_the_next_command(
    journey: dict[str, Any],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    net, positions = str(journey["folder"] / "net"), str(journey["folder"] / "positions")

    def text(*words: str) -> list[str]:
        code, out, _ = call(capsys, monkeypatch, *words)
        assert code == 0
        return out.splitlines()

    # the journey's report has one
    monkeypatch.setattr("pipeline.evaluation.render.report_page", lambda *_: b"")
    dump = tmp_path / "dump.pgn"
    random_dump(dump, 40)
    ended = {
        "ingest": text("ingest", str(dump), "--out", str(tmp_path / "first"), "--workers", "1"),
        "again": text("ingest", str(dump), "--out", str(tmp_path / "first"), "--workers", "1"),
        "join": text("join", positions, "--out", str(tmp_path / "set"))[-5:],
        "report": text(
            "report",
            "--checkpoint",
            net,
            "--positions",
            positions,
            "--limit",
            "50",
            "--out",
            str(tmp_path / "r"),
        ),
    }
    assert {name: len(lines) for name, lines in ended.items()} == dict.fromkeys(ended, 5)
    assert ended["ingest"][0] == f"{tmp_path / 'first'} is complete"
    assert ended["again"] == [
        f"{tmp_path / 'first'} is complete already: nothing was done",
        *ended["ingest"][1:],
    ]
    assert ended["ingest"][1] == "40 of 40 games are used"
    for lines in ended.values():
        following = shlex.split(lines[-1])
        assert following[:2] == ["next:", "fianchetto"]
        parse(following[2:])


def test_a_preset_that_nobody_names_is_the_run_s_or_the_start_s_or_the_recommended_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    def trained(*given: Any, **_: Any) -> dict[str, Any]:
        asked.append((given[1], given[-1]))
        return dict.fromkeys(
            ("parameters", "step", "positions", "seconds", "metrics", "message"), 1
        ) | {
            "preset": {"name": "fianchetto-s"},
            "metrics": {},
            "finished": True,
        }

    monkeypatch.setattr("pipeline.training.train.train_on", trained)
    monkeypatch.setattr(
        "model.checkpoint.read_card", lambda path: {"preset": {"name": f"of {path.name}"}}
    )
    words = ["train", "--positions", "x", "--steps", "1", "--json"]
    begun, seed = tmp_path / "begun", Path("seed")
    begun.mkdir()
    (begun / "checkpoint.json").touch()
    for more in (["--out", "y"], ["--out", "y", "--start", "seed"], ["--out", str(begun)]):
        assert call(capsys, monkeypatch, *words, *more)[0] == 0
        assert call(capsys, monkeypatch, *words, *more, "--preset", "fianchetto-s")[0] == 0
    assert asked[::2] == [("fianchetto-human", None), ("of seed", seed), ("of begun", None)]
    assert asked[1::2] == [("fianchetto-s", start) for start in (None, seed, None)]


@pytest.mark.parametrize("rank", [0, 1])
def test_of_several_processes_one_prints(
    rank: int, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    card = dict.fromkeys(("parameters", "step", "positions", "seconds", "message"), 1)
    card |= {"preset": {"name": "bishop"}, "metrics": {}}
    monkeypatch.setattr(
        "pipeline.training.train.train_on", lambda *_, **__: card | {"finished": True}
    )
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", str(rank))
    words = ["train", "--positions", "x", "--out", "y", "--steps", "1", "--json"]
    code, out, _ = call(capsys, monkeypatch, *words)
    assert code == 0
    assert (json.loads(out) == card | {"out": "y"}) if rank == 0 else (out == "")


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["ingest", "nowhere.pgn", "--out", "x"], "nowhere.pgn does not exist"),
        (["ingest", "--out", "x"], "DUMP... must be given"),
        (
            ["ingest", "nowhere.pgn", "--out", "x", "--set", "test_share=2"],
            "test_share and val_share are shares",
        ),
        (["train", "--positions", "x", "--out", "y"], "exactly one of minutes"),
        (["train", "--positions", "x", "--out", "y", "--steps", "1"], "x is not a directory"),
        (
            [
                "train",
                "--positions",
                "x",
                "--out",
                "y",
                "--steps",
                "1",
                "--preset",
                "fianchetto-sx",
            ],
            "fianchetto-xs",
        ),
        (["report", "--checkpoint", "x", "--positions", "y"], "x"),
        (["report", "--checkpoint", "x"], "give either a dataset (positions) or a PGN file"),
        (["show", "8/8/8/8/8/8/8/8 w - - 0 1"], "king"),
        (["show", "startpos", "--view", "maro77"], "did you mean 'marro77'"),
        (["frobnicate"], "frobnicate"),
    ],
)
def test_a_mistake_is_one_line_and_exit_2(
    words: list[str],
    line: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, error = call(capsys, monkeypatch, *words)
    assert code == 2
    assert out == ""
    assert error.count("\n") == 1
    assert error.startswith("fianchetto: ")
    assert line in error
    assert list(tmp_path.iterdir()) == [], "a mistake leaves nothing behind"


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (
            [
                "report",
                "--checkpoint",
                "{net}",
                "--positions",
                "{positions}",
                "--out",
                "file/report",
            ],
            "file is a file",
        ),
        (["audit", "{positions}", "--out", "file/audit"], "file is a file"),
        (["join", "{positions}", "--out", "file"], "file cannot be made into a directory"),
        (
            ["arena", "{net}", "uniform,simulations=0", "--out", "x"],
            "simulations must be at least 1",
        ),
        (
            ["arena", "{net}", "uniform", "uci:no-engine,nodes=1", "--out", "x"],
            "no-engine cannot be started",
        ),
        (
            [*FINETUNE, "--set", "train.momentum=2"],
            "momentum must be at most 0.9999",
        ),
    ],
)
def test_what_a_last_step_would_refuse_is_said_before_the_first(
    words: list[str],
    line: str,
    journey: dict[str, Any],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("in the way")
    code, out, error = call(
        capsys,
        monkeypatch,
        *[
            word.format(**{n: journey["folder"] / n for n in ("net", "positions")})
            for word in words
        ],
    )
    assert (code, out) == (2, "")
    assert line in error
    assert [path.name for path in tmp_path.iterdir()] == ["file"], "nothing was begun"


def test_a_damaged_archive_keeps_its_games_and_exits_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "broken.pgn.zst"
    broken.write_bytes(SAMPLE.read_bytes()[:300_000])
    code, _, error = call(
        capsys, monkeypatch, "ingest", str(broken), "--out", str(tmp_path / "out"), "--workers", "1"
    )
    assert code == 1
    assert "damaged archive" in error
    assert 200 < read_manifest(tmp_path / "out")["games"]["used"] < 2000


def test_show_lists_the_legal_moves_with_their_labels(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    code, out, _ = call(
        capsys, monkeypatch, "show", "startpos", "--out", str(tmp_path / "planes.png"), "--json"
    )
    shown = json.loads(out)
    assert code == 0
    assert set(shown["moves"]) == {move.uci() for move in chess.Board().legal_moves}
    assert Path(shown["picture"]).read_bytes().startswith(b"\x89PNG")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs a pseudo-terminal")
def test_a_bar_is_drawn_on_a_terminal(tmp_path: Path) -> None:
    leader, follower = pty.openpty()
    termios.tcsetwinsize(follower, (24, 120))
    random_dump(tmp_path / "dump.pgn", 100)
    done = subprocess.Popen(
        [
            *COMMAND,
            "ingest",
            str(tmp_path / "dump.pgn"),
            "--out",
            str(tmp_path / "out"),
            "--workers",
            "1",
        ],
        stdout=subprocess.DEVNULL,
        stderr=follower,
    )
    os.close(follower)
    drawn = b""
    while True:
        try:
            piece = os.read(leader, 65536)
        except OSError:  # Linux says so when the other end is closed
            break
        if not piece:
            break
        drawn += piece
    os.close(leader)
    assert done.wait() == 0
    assert b"positions" in drawn
    assert b"%" in drawn


def test_the_help_says_what_exit_statuses_mean(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    code, out, _ = call(capsys, monkeypatch, "--help")
    assert code == 0
    told = " ".join(re.sub("[^0-9a-zA-Z ]", " ", out).split())
    for words in ("0 success", "2 an error", "130 stopped by Ctrl C", "143 by SIGTERM"):
        assert words in told
