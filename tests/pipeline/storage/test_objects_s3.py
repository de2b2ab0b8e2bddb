"""Datasets and dumps in a real S3 store, OpenStack Swift's server on loopback."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zstandard

from pipeline.dataset.batches import Batches
from pipeline.errors import DatasetError, FetchError, IngestError, SourceChangedError
from pipeline.ingest.chunk import IngestConfig
from pipeline.ingest.job import ingest
from pipeline.storage import objects
from pipeline.storage.stores import parse_path, publish
from pipeline.validation.verify import compare_files
from tests.conftest import REPOSITORY
from tests.pipeline import datasets
from tests.pipeline.storage import swift
from tests.pipeline.storage.test_elsewhere import INGEST

for needed in ("swift", "s3fs"):
    pytest.importorskip(
        needed,
        reason=f"{needed} is not installed: pip install swift==2.38.3 s3fs, and run this again",
    )
pytestmark = pytest.mark.slow

CONFIG = IngestConfig(chunk_mib=1, test_share=0.2, val_share=0.1)
COMMAND = [sys.executable, "-c", "from pipeline.cli.main import main; main()"]
SETTINGS = INGEST.split()


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Serve S3, and give the bucket."""
    with (
        swift.serving_s3(tmp_path_factory.mktemp("swift")) as address,
        pytest.MonkeyPatch.context() as patch,
    ):
        for name, value in (swift.USER | {"AWS_ENDPOINT_URL": address}).items():
            patch.setenv(name, value)
        bucket: Any = parse_path("s3://chess")
        bucket.fs.mkdir("chess")
        yield bucket


@pytest.fixture(scope="module")
def dump(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make an archive of three chunks."""
    games = [datasets.random_game(seed) for seed in range(40)]
    text = "".join("".join(games[at:] + games[:at]) for at in range(24)).encode()
    path = tmp_path_factory.mktemp("dump") / "games.pgn.zst"
    path.write_bytes(zstandard.compress(text, 1))
    return path


@pytest.fixture(scope="module")
def made(dump: Path) -> dict[str, str]:
    """Ingest the file here: the hash of each file."""
    ingest([str(dump)], dump.parent / "made", CONFIG, workers=1)
    return datasets.content(dump.parent / "made")


def content(folder: Any) -> dict[str, str]:
    """Return the hash of every object below a prefix."""
    found = {}
    for name in folder.fs.find(folder.path):
        digest = datasets.hashlib.sha256(folder.fs.cat_file(name)).hexdigest()
        found[name.removeprefix(folder.path.rstrip("/") + "/")] = digest
    return found


def run(words: list[str], folder: Path, **more: str) -> "subprocess.CompletedProcess[str]":
    """Run a command in a folder."""
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)} | more
    return subprocess.run(
        [*COMMAND, *words],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_dump_in_a_store_is_read_in_ranges(
    store: Any, dump: Path, made: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(objects, "REQUEST_BYTES", 10_000)
    publish(store / "dumps", dump.name, 0, lambda target: target.write(dump.read_bytes()))
    manifest = ingest([str(store / "dumps" / dump.name)], tmp_path / "out", CONFIG, workers=1)
    assert len(dump.read_bytes()) > 30_000
    found = datasets.content(tmp_path / "out")
    assert {name for name in made if found[name] != made[name]} == {"manifest.json"}
    source = manifest["sources"][0]
    assert source["version"]
    assert source["sha256"] == datasets.hashlib.sha256(dump.read_bytes()).hexdigest()
    reading = objects.open_remote(str(store / "dumps" / dump.name))
    reading.read(1)
    publish(store / "dumps", dump.name, 0, lambda target: target.write(dump.read_bytes()[::-1]))
    with pytest.raises(SourceChangedError, match="was replaced"):
        list(iter(lambda: reading.read(1 << 20), b""))
    with pytest.raises(DatasetError, match="have changed"):
        ingest([str(store / "dumps" / dump.name)], tmp_path / "out", CONFIG, workers=1)


def test_a_wrong_secret_and_missing_objects_are_reported_in_one_line(
    store: Any, dump: Path, tmp_path: Path
) -> None:
    ingests = [str(dump), "--out", "s3://chess/wrong"], ["s3://chess/a.pgn", "--out", "nowhere"]
    for words in ingests:
        done = run(["ingest", *words, *SETTINGS], dump.parent, AWS_SECRET_ACCESS_KEY="wrong")
        assert done.returncode == 2, done.stderr
        assert len(done.stderr.splitlines()) == 1, done.stderr
        assert "s3://chess/" in done.stderr
    assert content(store / "wrong") == {}
    with pytest.raises(FetchError, match="does not exist"):
        ingest(["s3://chess/nothing.pgn"], tmp_path / "out", CONFIG, workers=1)
    with pytest.raises(IngestError, match="s3://nobucket/x"):
        ingest([str(dump)], parse_path("s3://nobucket/x"), CONFIG, workers=1)


def test_a_killed_ingest_is_continued_to_the_same_objects(
    store: Any, dump: Path, made: dict[str, str]
) -> None:
    command = [*COMMAND, "ingest", str(dump), "--out", "s3://chess/again", *SETTINGS]
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    chance, kills = random.Random(1), 0
    for seen in (1, 4, 7, 9):  # objects that are there when it is killed
        with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL) as running:
            while running.poll() is None and len(store.fs.find("chess/again")) < seen:
                time.sleep(0.05)
            time.sleep(chance.random() * 0.2)
            running.send_signal(signal.SIGKILL)
        kills += running.returncode == -signal.SIGKILL
        visible = content(store / "again")
        assert {name: made[name] for name in visible if name in made} == {
            name: digest for name, digest in visible.items() if name in made
        }
    assert kills >= 3
    done = run([*command[len(COMMAND) :], "--json"], dump.parent)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["out"] == "s3://chess/again"
    assert content(store / "again") == made
    assert compare_files(store / "again") == []
    there, here = (Batches([one]).read_rows() for one in (store / "again", dump.parent / "made"))
    for rows, expected in zip(there, here, strict=True):
        assert all((rows[name] == expected[name]).all() for name in expected)
