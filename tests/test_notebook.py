"""Run the notebook of first steps, and on a CPU the notebook for Colab and Kaggle."""

import json
import re
import shutil
import sys
import zipfile
from pathlib import Path

import chess
import pytest

from pipeline.samples.shipped import SAMPLE_DUMP
from tests.conftest import REPOSITORY
from tests.notebook import NOTEBOOK, run_cells

GPU_NOTEBOOK = REPOSITORY / "docs" / "train_on_gpu.ipynb"


def test_the_notebook_of_first_steps_reproduces_its_stored_outputs(tmp_path: Path) -> None:
    cells = json.loads(NOTEBOOK.read_text())["cells"]
    variables, outputs = run_cells(cells, tmp_path)
    assert variables["manifest"]["games"]["used"] == 2000
    board, row = chess.Board(variables["row"]["fen"]), variables["row"]
    assert chess.Move.from_uci(row["uci"]) in board.legal_moves
    assert variables["choice"].move in board.legal_moves
    assert (variables["pictures"].sum(axis=(2, 3))[:, 10:12] == 1).all(), "each side has one king"
    stored = [cell["outputs"] for cell in cells if cell["cell_type"] == "code"]
    # later outputs depend on the machine: compare only their media types
    assert [list(map(media_type, cell)) for cell in stored] == [
        list(map(media_type, cell)) for cell in outputs
    ]
    assert outputs[:3] == stored[:3], "run `python -m tests.notebook`"


def media_type(output: dict[str, dict[str, object]]) -> str:
    return next(iter(output.get("data", {"text": ""})))


def translate(source: str, steps: int) -> str:
    """Translate a cell to Python: commands become subprocesses with less work.

    `%pip` and `fetch` are removed, since they need the internet.
    """
    for text, smaller in (
        ("\\\n", " "),
        ("--batch-size 2048", "--batch-size 16"),
        ("--minutes 60", f"--steps {steps} --device cpu"),
        ("fianchetto-human-m", "fianchetto-human"),
        ("fianchetto report", "fianchetto report --limit 50"),
    ):
        source = source.replace(text, smaller)
    skipped = ("%pip", "!fianchetto fetch")
    return "\n".join(
        f"run_command(f{line.removeprefix('!fianchetto')!r})" if line.startswith("!") else line
        for line in source.splitlines()
        if not line.startswith(skipped)
    )


RUN_COMMAND = f"""
import os, shlex, subprocess
def run_command(line):
    command = [{sys.executable!r}, "-m", "pipeline", *shlex.split(line)]
    subprocess.run(command, env=os.environ | {{"PYTHONPATH": {str(REPOSITORY)!r}}}, check=True)
"""


@pytest.mark.slow
def test_the_notebook_for_gpus_resumes_on_a_new_machine(tmp_path: Path) -> None:
    """Train two steps on the embedded sample, then two more on a machine without the dataset."""
    notebook = json.loads(GPU_NOTEBOOK.read_text())
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    assert all(re.fullmatch(r"[\w-]{1,64}", cell["id"]) for cell in notebook["cells"])
    for folder, steps in ((tmp_path / "first", 2), (tmp_path / "second", 4)):
        dumps = folder / "datasets" / "dumps"
        dumps.mkdir(parents=True)
        shutil.copy(SAMPLE_DUMP, dumps / "lichess_db_standard_rated_2013-01.pgn.zst")
        if steps == 4:
            shutil.copytree(tmp_path / "first" / "kept", folder / "kept")
        cells = [{"cell_type": "code", "source": [RUN_COMMAND]}]
        for cell in notebook["cells"]:
            cells.append(cell | {"source": [translate("".join(cell["source"]), steps)]})
        run_cells(cells, folder)
        kept = folder / "kept"
        assert json.loads((kept / "human" / "checkpoint.json").read_text())["step"] == steps
        assert (kept / "report" / "report.html").exists()
        names = zipfile.ZipFile(kept / "human.zip").namelist()
        assert {"human/checkpoint.json", "human/model.onnx"} <= set(names)
    lines = map(json.loads, (kept / "human" / "metrics.jsonl").read_text().splitlines())
    assert next(lines)["step"] <= 2, "the second machine resumed"
