"""Which code a dataset is of: what decides rows counts, and nothing else; and datasets of other code are said to be."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipeline.dataset.files.shards import read_manifest, verify
from pipeline.dataset.training_set import split_shards
from pipeline.errors import DatasetError
from pipeline.ingest import job as ingest_module
from pipeline.ingest import manifest as manifest_module
from pipeline.ingest.chunk import IngestConfig
from pipeline.ingest.job import ingest
from pipeline.ingest.rows_code import CARRIERS, ROOTS, code_of, modules, rows_code
from tests.conftest import REPOSITORY
from tests.pipeline import datasets

SMALL = IngestConfig(chunk_mib=1, test_share=0.3)


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copy the packages as a wheel would hold them."""
    folder = tmp_path_factory.mktemp("site-packages")
    for room in ("engine", "model", "pipeline"):
        shutil.copytree(REPOSITORY / room, folder / room, ignore=shutil.ignore_patterns("__pycache__", "*.md"))
    return folder


def test_it_is_the_same_of_a_copy_elsewhere_and_in_another_process(packages: Path) -> None:
    assert code_of(packages) == code_of(REPOSITORY) == rows_code()
    words = "from pipeline.ingest.rows_code import rows_code; print(rows_code())"
    told = subprocess.run([sys.executable, "-c", words], cwd=packages, capture_output=True, text=True, check=True)
    assert told.stdout.strip() == rows_code()


def test_the_modules_are_those_that_python_loads_to_encode() -> None:
    """Whatever of ours is imported by the workers' modules is either counted, or named as a carrier of bytes."""
    words = f"import sys, {', '.join(ROOTS)}; print('\\n'.join(sys.modules))"
    told = subprocess.run([sys.executable, "-c", words], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    loaded = {name for name in told.stdout.split() if name.partition(".")[0] in ("engine", "pipeline", "model")}
    packages = {"engine", "pipeline", *(name.rpartition(".")[0] for name in CARRIERS)}
    assert loaded - packages <= modules(REPOSITORY).keys() | CARRIERS
    for name in CARRIERS:
        assert REPOSITORY.joinpath(*name.split(".")).with_suffix(".py").is_file(), "a carrier that is gone"


@pytest.mark.parametrize(
    ("path", "change", "counts"),
    [
        ("pipeline/pgn/san.py", lambda text: text + "\nSLACK = 1\n", True),
        ("engine/board/movegen.py", lambda text: text.replace("return", "return 0 or", 1), True),
        ("pipeline/dumps/formats/positions.py", lambda text: text + "\nEXTRA = 2\n", True),
        ("pipeline/ingest/scatter.py", lambda text: text.replace("1 << 20", "1 << 21"), True),
        (
            "pipeline/pgn/san.py",
            lambda text: '"""Other words."""\n\n# and a comment\n\n' + text[text.index('"""\n') + 4 :],
            False,
        ),
        ("pipeline/cli/progress.py", lambda text: text + "\nWIDE = 1\n", False),
        ("pipeline/storage/stores.py", lambda text: text + "\nWIDE = 1\n", False),
        ("pipeline/evaluation/report.py", lambda text: text + "\nWIDE = 1\n", False),
    ],
)
def test_what_decides_rows_counts_and_words_do_not(
    packages: Path, path: str, change: Callable[[str], str], counts: bool
) -> None:
    file = packages / path
    text = file.read_text()
    file.write_text(change(text))
    try:
        assert file.read_text() != text
        assert (code_of(packages) != rows_code()) == counts
    finally:
        file.write_text(text)


def other_code(patch: pytest.MonkeyPatch) -> None:
    """Let this program be of other code from here on."""
    for module in (ingest_module, manifest_module):
        patch.setattr(module, "rows_code", lambda: "0123456789abcdef")


def test_a_finished_dataset_of_other_code_is_said_to_be_and_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dump, out = datasets.dump(tmp_path / "games.pgn", 12), tmp_path / "out"
    manifest = ingest([str(dump)], out, SMALL, workers=1)
    assert manifest["code"] == rows_code()
    assert ingest([str(dump)], out, SMALL, workers=1) == manifest
    before = datasets.content(out)
    with monkeypatch.context() as patch:
        other_code(patch)
        with pytest.raises(
            DatasetError, match=rf"made by other code \({rows_code()}, this is 0123456789abcdef\).*choose another --out"
        ):
            ingest([str(dump)], out, SMALL, workers=1)
        assert datasets.content(out) == before
        assert ingest([str(dump)], tmp_path / "beside", SMALL, workers=1)["code"] == "0123456789abcdef"
    older: dict[str, Any] = {name: value for name, value in manifest.items() if name != "code"}
    (out / "manifest.json").write_text(json.dumps(older))
    assert read_manifest(out) == older  # format version 2 from before there was such a field
    assert verify(out) == []
    assert split_shards(out, "train")
    with pytest.raises(DatasetError, match=r"made by other code .it does not say which"):
        ingest([str(dump)], out, SMALL, workers=1)


def test_what_other_code_has_begun_is_not_gone_on_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dump, out = datasets.dump(tmp_path / "games.pgn", 12), tmp_path / "out"
    with pytest.raises(ValueError, match="stopped"):
        ingest([str(dump)], out, SMALL, workers=1, stop=lambda: True)
    before = datasets.content(out)
    other_code(monkeypatch)
    with pytest.raises(DatasetError, match=r"an unfinished ingest by other versions of the code .*not mixed"):
        ingest([str(dump)], out, SMALL, workers=1)
    assert datasets.content(out) == before
