"""What datasets/README.md shows is run as it stands there."""

import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.cli.main import main
from pipeline.dataset.batches import Batches
from pipeline.dataset.files.columns import PLANE_FORMATS
from pipeline.dataset.files.manifest import read_manifest

README = Path(__file__).parents[3] / "datasets" / "README.md"


def blocks(kind: str) -> Iterator[str]:
    """Return the blocks of a kind in the section on other tools."""
    text = README.read_text()
    section = text[text.index("## With other tools") : text.index("## A training set")]
    yield from re.findall(rf"```{kind}\n(.*?)```", section, re.DOTALL)


@pytest.fixture
def folder(made: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in a folder with the datasets that the page names."""
    for name, form in zip(("games", "small"), PLANE_FORMATS, strict=True):
        (tmp_path / name).symlink_to(made[form])
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_every_recipe_does_what_it_says(folder: Path) -> None:
    found: dict[str, Any] = {}
    for block in blocks("python"):
        exec(compile(block, str(README), "exec"), found)
    assert len(list((folder / "games").glob("train-*.parquet"))) == 1
    rows = next(Batches([folder / "games"], batch_size=1 << 14).read_rows())
    assert len(found["frame"]) == read_manifest(folder / "games")["positions"]["train"]
    assert found["openings"]["len"].sum() == int(
        ((rows["ply"] >= 20) & (rows["elo"] >= 2000)).sum()
    )
    assert np.isclose(found["queens"].item(), np.bitwise_count(rows["planes"][:, 8]).mean())
    assert np.array_equal(found["planes"], rows["planes"])
    assert sum(count for _, count, _ in found["answer"]) == int((rows["ply"] >= 20).sum())
    assert found["inputs"].shape == (256, 77, 8, 8)
    assert found["targets"].dtype.is_signed
    picked = found["inputs"].reshape(256, 77, 64)[
        range(256), 13 + found["targets"] // 64, found["targets"] % 64
    ]
    assert bool((picked == 1).all()), "the move that was played is legal"


def test_every_command_of_it_runs(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [line for block in blocks("sh") for line in block.splitlines()]
    assert len(lines) == 2
    for line in lines:
        monkeypatch.setattr(sys, "argv", shlex.split(line))
        with pytest.raises(SystemExit) as ended:
            main()
        assert not ended.value.code
    assert "fen" in capsys.readouterr().out
    assert (
        len((folder / "test.csv").read_text().splitlines())
        == 1 + read_manifest(folder / "small")["positions"]["test"]
    )
