"""The wheel is built, installed in a new environment, and used from another folder."""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import REPOSITORY
from tests.pipeline.datasets import random_game

pytestmark = pytest.mark.slow  # it compiles the kernels again

CELLS = """
import json

names = {'__name__': '__main__'}
if __name__ == '__main__':
    for cell in json.load(open('first_steps.ipynb'))['cells']:
        if cell['cell_type'] == 'code':
            exec(''.join(cell['source']), names)
    print('played', names['choice'].move)
"""


def run(*words: object, cwd: Path, text: str = "") -> str:
    """Run a command that must succeed, and return what it prints."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    options: dict[str, Any] = {"cwd": cwd, "input": text, "env": environment}
    command = [str(word) for word in words]
    process = subprocess.run(command, capture_output=True, text=True, check=False, **options)
    assert process.returncode == 0, process.stderr
    return str(process.stdout)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel, install it with this environment's libraries, and return its programs."""
    base = tmp_path_factory.mktemp("wheel")
    ignored = shutil.ignore_patterns("__pycache__", "*.nbi", "*.nbc")
    data = ("datasets/embedded", "datasets/sample")
    for name in ("engine", "fianchetto", "model", "pipeline", *data):
        shutil.copytree(REPOSITORY / name, base / "tree" / name, ignore=ignored)
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(REPOSITORY / name, base / "tree")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    run(*pip, "wheel", ".", "--no-deps", "--no-build-isolation", "-w", base, cwd=base / "tree")
    run(sys.executable, "-m", "venv", "--without-pip", base / "venv", cwd=base)
    (wheel,) = base.glob("*.whl")
    run(*pip, "--python", base / "venv" / "bin" / "python", "install", "--no-deps", wheel, cwd=base)
    (packages,) = (base / "venv" / "lib").glob("python*/site-packages")
    (packages / "libraries.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    shutil.rmtree(base / "tree")
    return base / "venv" / "bin"


def test_the_commands_and_the_api_of_the_wheel_work_in_another_folder(
    installed: Path, tmp_path: Path
) -> None:
    program, go = installed / "fianchetto", "uci\nposition startpos\ngo nodes 8\nquit\n"
    lines = run(program, "uci", cwd=tmp_path, text=go).splitlines()
    assert lines[0].startswith("info string plays by the network in ")
    assert str(installed.parent) in lines[0]
    assert lines[-1].startswith("bestmove ")
    assert "bestmove " in run(installed / "fianchetto-uci", cwd=tmp_path, text=go)
    (tmp_path / "dump.pgn").write_text("\n".join(random_game(seed) for seed in range(4)))
    words = ["ingest", "dump.pgn", "--out", "positions", "--workers", "1", "--json"]
    assert json.loads(run(program, *words, cwd=tmp_path))["games"]["used"] == 4
    assert "20 legal labels" in run(program, "show", "startpos", cwd=tmp_path)
    notebook = tmp_path / "notebook"
    notebook.mkdir()
    shutil.copy(REPOSITORY / "docs" / "first_steps.ipynb", notebook)
    (notebook / "cells.py").write_text(CELLS)
    assert "\nplayed " in run(installed / "python", "cells.py", cwd=notebook)
    code = (
        "import fianchetto; print(fianchetto.__file__, fianchetto.load().choose('startpos').move)"
    )
    place, move = run(installed / "python", "-c", code, cwd=tmp_path).split()
    assert place.startswith(str(installed.parent))
    assert len(move) == 4
