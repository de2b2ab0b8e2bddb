"""The examples of datasets/README.md run as they are printed."""

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
from tests.conftest import REPOSITORY

README = REPOSITORY / "datasets" / "README.md"


def code_blocks(language: str) -> Iterator[str]:
    """Yield the code blocks of a language in the section on other tools."""
    text = README.read_text()
    section = text[text.index("## With other tools") : text.index("## A training set")]
    yield from re.findall(rf"```{language}\n(.*?)```", section, re.DOTALL)


@pytest.fixture
def folder(made: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in a folder with the datasets that the examples read."""
    for name, plane_format in zip(("games", "small"), PLANE_FORMATS, strict=True):
        (tmp_path / name).symlink_to(made[plane_format])
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_python_examples_compute_what_batches_show(folder: Path) -> None:
    found: dict[str, Any] = {}
    for block in code_blocks("python"):
        exec(compile(block, str(README), "exec"), found)
    assert len(list((folder / "games").glob("train-*.parquet"))) == 1
    rows = next(Batches([folder / "games"], batch_size=1 << 14).read_rows())
    assert len(found["frame"]) == read_manifest(folder / "games")["positions"]["train"]
    is_strong = (rows["ply"] >= 20) & (rows["elo"] >= 2000)
    assert found["openings"]["len"].sum() == int(is_strong.sum())
    assert np.isclose(found["queens"].item(), np.bitwise_count(rows["planes"][:, 8]).mean())
    assert np.array_equal(found["planes"], rows["planes"])
    assert sum(count for _, count, _ in found["answer"]) == int((rows["ply"] >= 20).sum())
    assert found["inputs"].shape == (256, 77, 8, 8)
    assert found["targets"].dtype.is_signed
    labels, squares = found["inputs"].reshape(256, 77, 64), found["targets"] % 64
    picked = labels[range(256), 13 + found["targets"] // 64, squares]
    assert bool((picked == 1).all()), "the move that was played is legal"


def test_commands_run(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [line for block in code_blocks("sh") for line in block.splitlines()]
    assert len(lines) == 2
    for line in lines:
        monkeypatch.setattr(sys, "argv", shlex.split(line))
        with pytest.raises(SystemExit) as ended:
            main()
        assert not ended.value.code
    assert "fen" in capsys.readouterr().out
    rows = len((folder / "test.csv").read_text().splitlines()) - 1
    assert rows == read_manifest(folder / "small")["positions"]["test"]
