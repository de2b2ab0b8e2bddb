"""Mistakes in the command `finetune` are reported in one line, before anything is written."""

import sys
from pathlib import Path

import pytest

from pipeline.cli.main import main


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["--generations", "1", "--games-share", "1", "--explorer", "hand-written"],
            "holds no checkpoint",
        ),
        (["--generations", "1"], "name datasets with --positions"),
        ([], "set how long to fine-tune: generations, minutes or both"),
        (["--generations", "0"], "--generations must be at least 1"),
        (["--minutes", "nan"], "--minutes must be a finite number"),
        (["--minutes", "inf"], "--minutes must be a finite number"),
        (["--generations", "1", "--set", "most_uses=inf"], "most_uses must be a finite number"),
        (["--generations", "1", "--set", "gate.elo1=inf"], "gate.elo1 must be a finite number"),
        (["--generations", "1", "--near-share", "nan"], "--near-share must be a finite number"),
        (["--generations", "1", "--seed", "4294967296"], "--seed must be less than 2147483648"),
        (
            ["--generations", "1", "--set", "train.search_value_share=0.9"],
            "set teach to value or both",
        ),
        (["--generations", "1", "--set", "human_share=1"], "human_share must be less than 1"),
        (["--generations", "1", "--set", "gate.games=3"], "must be a multiple of 2"),
        (["--generations", "1", "--set", "gate.elo0=50"], "elo0 = 50 is not below elo1"),
        (["--generations", "1", "--set", "explore.games=0"], "games must be at least 1"),
        (["--generations", "1", "--positions", "nowhere"], "no checkpoint"),
    ],
)
def test_a_mistake_is_one_line_and_leaves_nothing(
    words: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        sys, "argv", ["fianchetto", "finetune", "--checkpoint", "x", "--out", "y", *words]
    )
    with pytest.raises(SystemExit) as ended:
        main()
    told = capsys.readouterr()
    assert ended.value.code == 2
    assert told.out == ""
    assert told.err.count("\n") == 1
    assert message in told.err
    assert list(tmp_path.iterdir()) == []
