"""`fianchetto presets`: what it lists, for people and for programs."""

import json

import pytest

from model.network.presets import presets
from tests.pipeline.cli.conftest import call


def test_all_networks_are_listed_with_their_sizes(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, out, _ = call(capsys, monkeypatch, "presets", "--json")
    rows = {row["preset"]: row for row in json.loads(out)["presets"]}
    assert list(rows) == list(presets())
    assert rows["fianchetto-xs"]["parameters"] == 578_691
    # By hand: stem, 6 blocks of two convolutions, 64 policy planes and 16 value channels of 1x1, on
    # 64 squares; then linear layers of gates and value. A multiply-add is two.
    convolutions = 64 * (77 * 64 * 9 + 6 * 2 * 64 * 64 * 9 + 64 * 64 + 64 * 16)
    linears = 6 * (64 * 16 + 16 * 128 + 64 * 64) + 16 * 64 * 64 + 64 * 3
    assert rows["fianchetto-xs"]["flops"] == 2 * (convolutions + linears)
    _, out, _ = call(capsys, monkeypatch, "presets")
    assert [line.split()[0] for line in out.splitlines()[1:]] == list(presets())
