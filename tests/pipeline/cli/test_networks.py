"""`fianchetto presets`: what it lists, measured and not, for people and for programs."""

import json
import subprocess
import sys
from typing import Any

import pytest

from model.costs import size
from model.network.presets import UnknownPresetError, preset, presets
from pipeline.cli import main as cli
from pipeline.cli.commands.networks import Presets
from tests.conftest import REPOSITORY


def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *words: str) -> tuple[int, str]:
    monkeypatch.setattr("sys.argv", ["fianchetto", "presets", *words])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    return int(ended.value.code or 0), capsys.readouterr().out


def test_all_presets_are_listed_for_programs(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    code, out = run(capsys, monkeypatch, "--json")
    assert code == 0
    listed: list[dict[str, Any]] = json.loads(out.splitlines()[-1])["presets"]
    assert [row["preset"] for row in listed] == list(presets())
    for row in listed:
        assert {name: row[name] for name in ("parameters", "flops")} == size(preset(row["preset"]))
    by_name = {row["preset"]: row for row in listed}
    assert by_name["fianchetto-xs"]["parameters"] == 578_691
    # By hand: stem, 6 blocks of two convolutions, 64 policy planes and 16 value channels of 1x1, on 64 squares; then linear
    # layers of gates and value. A multiply-add is two.
    convolutions = 64 * (77 * 64 * 9 + 6 * 2 * 64 * 64 * 9 + 64 * 64 + 64 * 16)
    linears = 6 * (64 * 16 + 16 * 128 + 64 * 64) + 16 * 64 * 64 + 64 * 3
    assert by_name["fianchetto-xs"]["flops"] == 2 * (convolutions + linears)


def test_an_unknown_name_is_named() -> None:
    with pytest.raises(UnknownPresetError, match="did you mean alphazero19"):
        Presets(presets=("alphazero",)).run()


def test_presets_are_listed_without_torch() -> None:
    code = "import sys; from pipeline.cli.main import main\ntry: main()\nfinally: assert 'torch' not in sys.modules"
    command = [sys.executable, "-c", code, "presets", "fianchetto-xs"]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    header, line, *_ = done.stdout.splitlines()
    assert header.split() == ["preset", "view", "moves", "parameters", "MFLOP/position"]
    assert line.split() == ["fianchetto-xs", "marro77", "marro4096", "578,691", "63.2"]
