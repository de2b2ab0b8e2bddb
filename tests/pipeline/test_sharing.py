"""Push and pull with a stand-in for the hub: the files are the same, and checked on arrival."""

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

pytest.importorskip("huggingface_hub", reason="the extra `hf` is not installed")

from model.checkpoint import DamagedFileError
from pipeline.dataset.dataset import Dataset
from pipeline.errors import ConfigError, DatasetError, FetchError
from pipeline.ingest.chunk import IngestConfig
from pipeline.ingest.job import ingest
from pipeline.samples.shipped import EMBEDDED_CHECKPOINT
from pipeline.sharing import pull, push
from tests.model.test_checkpoint import make
from tests.pipeline.hub import Hub, serving


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    """Serve a stand-in, and let huggingface_hub use it instead of the real hub."""
    from huggingface_hub import constants

    with serving() as hub:
        template = hub.url + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "ENDPOINT", hub.url)  # as HF_ENDPOINT does at import
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setenv("HF_TOKEN", "hf_stand_in")
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        yield hub


def read_readme(repo: dict[str, bytes]) -> tuple[dict[str, object], str]:
    """Return the YAML header and the text of a repository's README."""
    _, header, text = repo["README.md"].decode().split("---\n", 2)
    return yaml.safe_load(header), text


def test_a_checkpoint_arrives_with_a_filled_card(hub: Hub, tmp_path: Path) -> None:
    report = tmp_path / "report"
    report.mkdir()
    headline = {"headline": "The network finds 51.3 % of the moves.", "compared": "Chance 7 %."}
    (report / "report.json").write_text(json.dumps(headline))
    done = push(EMBEDDED_CHECKPOINT, "me/net", "gpl-3.0", report=report)
    repo = hub.repos["models", "me/net"]
    assert sorted(done["files"]) == sorted(repo)
    assert hub.private["me/net"]
    header, text = read_readme(repo)
    assert header["license"] == "gpl-3.0"
    for words in ("# net", "621,124", "51.3 %", "rapid", "fianchetto pull me/net"):
        assert words in text
    repo["setup.py"] = b"import os"  # code that somebody added is not downloaded
    (tmp_path / "net.pulling").mkdir()
    (tmp_path / "net.pulling" / "weights-9.safetensors").write_bytes(b"of another pull")
    assert pull("me/net", tmp_path / "net")["kind"] == "model"
    names = {path.name for path in (tmp_path / "net").iterdir()}
    assert names == {*done["files"]}
    for name in names - {"README.md"}:
        assert (tmp_path / "net" / name).read_bytes() == (EMBEDDED_CHECKPOINT / name).read_bytes()
    with pytest.raises(ConfigError, match="not an empty directory"):
        pull("me/net", tmp_path / "net")


def test_a_changed_weight_is_refused(hub: Hub, tmp_path: Path) -> None:
    make(tmp_path / "tiny")
    push(tmp_path / "tiny", "me/tiny", "mit", public=True)
    repo = hub.repos["models", "me/tiny"]
    assert not hub.private["me/tiny"]
    (weights,) = (name for name in repo if name.startswith("weights-"))
    repo[weights] = repo[weights][:-1] + b"x"
    with pytest.raises(DamagedFileError, match="hash"):
        pull("me/tiny", tmp_path / "out")
    assert not (tmp_path / "out").exists()
    shutil.rmtree(tmp_path / "out.pulling")
    shutil.copytree(EMBEDDED_CHECKPOINT, tmp_path / "damaged")
    (tmp_path / "damaged" / "model.onnx").write_bytes(b"x")
    with pytest.raises(Exception, match="hash"):
        push(tmp_path / "damaged", "me/damaged", "mit")
    assert ("models", "me/damaged") not in hub.repos


def test_a_dataset_arrives_as_it_was(hub: Hub, tmp_path: Path) -> None:
    game = (
        '[White "a"]\n[Black "b"]\n[Result "1-0"]\n\n1. e4 e5 2. Qh5 Nc6 3. Bc4 Nf6 4. Qxf7# 1-0\n'
    )
    (tmp_path / "games.pgn").write_text(game)
    ingest([str(tmp_path / "games.pgn")], tmp_path / "games", IngestConfig(), workers=1)
    push(tmp_path / "games", "me/games", "cc0-1.0")
    header, text = read_readme(hub.repos["datasets", "me/games"])
    assert header["license"] == "cc0-1.0"
    assert "fianchetto pull datasets/me/games" in text
    repo = hub.repos["datasets", "me/games"]
    repo |= dict.fromkeys(("../evil.parquet", "a/../../evil.parquet", "deep/evil.parquet"), b"x")
    pull("datasets/me/games", tmp_path / "pulled")
    assert Dataset.open(tmp_path / "pulled").identity == Dataset.open(tmp_path / "games").identity
    assert not [*tmp_path.rglob("evil.parquet")], "no file is written outside the folder"
    repo["games.parquet"] = repo["games.parquet"][:-1] + b"x"
    with pytest.raises(DatasetError):
        pull("datasets/me/games", tmp_path / "damaged")


def test_errors_are_one_line(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(FetchError, match="me/none: the hub answered"):
        pull("me/none", tmp_path / "none")
    with pytest.raises(FetchError, match="the hub answered"):
        pull("not a name", tmp_path / "none")
    with pytest.raises(ConfigError, match="neither a checkpoint nor a dataset"):
        push(tmp_path, "me/none", "mit")
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ConfigError, match=r"pip install 'fianchetto\[hf\]'"):
        push(EMBEDDED_CHECKPOINT, "me/net", "mit")
