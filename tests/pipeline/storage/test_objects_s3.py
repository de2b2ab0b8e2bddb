"""Datasets and dumps in a real S3 store, OpenStack Swift's server on loopback."""

import hashlib
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

from pipeline.errors import DatasetError, FetchError, IngestError, SourceChangedError
from pipeline.ingest.chunk import IngestConfig
from pipeline.ingest.job import ingest
from pipeline.storage import objects
from pipeline.storage.stores import parse_path, publish_bytes
from pipeline.validation.verify import compare_files
from tests.conftest import REPOSITORY
from tests.pipeline import datasets
from tests.pipeline.storage import swift
from tests.pipeline.storage.test_elsewhere import INGEST
from tests.pipeline.storage.test_streams import assert_same_rows, dump, made  # noqa: F401

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
    """Serve S3, and yield a bucket."""
    with (
        swift.serving_s3(tmp_path_factory.mktemp("swift")) as address,
        pytest.MonkeyPatch.context() as patch,
    ):
        for name, value in (swift.USER | {"AWS_ENDPOINT_URL": address}).items():
            patch.setenv(name, value)
        bucket: Any = parse_path("s3://chess")
        bucket.fs.mkdir("chess")
        yield bucket


def hash_objects(folder: Any) -> dict[str, str]:
    """Return the hash of every object below a prefix, by its name."""
    return {
        name.removeprefix(folder.path.rstrip("/") + "/"): hash_bytes(folder.fs.cat_file(name))
        for name in folder.fs.find(folder.path)
    }


def hash_bytes(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


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
    store: Any,
    dump: Path,  # noqa: F811
    made: Path,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(objects, "REQUEST_BYTES", 10_000)
    publish_bytes(store / "dumps", dump.name, dump.read_bytes())
    manifest = ingest([str(store / "dumps" / dump.name)], tmp_path / "out", CONFIG, workers=1)
    assert len(dump.read_bytes()) > 30_000
    found, local = datasets.content(tmp_path / "out"), datasets.content(made)
    assert {name for name in local if found[name] != local[name]} == {"manifest.json"}
    source = manifest["sources"][0]
    assert source["version"]
    assert source["sha256"] == hash_bytes(dump.read_bytes())
    reading = objects.open_remote(str(store / "dumps" / dump.name))
    reading.read(1)
    publish_bytes(store / "dumps", dump.name, dump.read_bytes()[::-1])
    with pytest.raises(SourceChangedError, match="was replaced"):
        list(iter(lambda: reading.read(1 << 20), b""))
    with pytest.raises(DatasetError, match="have changed"):
        ingest([str(store / "dumps" / dump.name)], tmp_path / "out", CONFIG, workers=1)


def test_a_wrong_secret_and_missing_objects_are_reported_in_one_line(
    store: Any,
    dump: Path,  # noqa: F811
    tmp_path: Path,
) -> None:
    ingests = [str(dump), "--out", "s3://chess/wrong"], ["s3://chess/a.pgn", "--out", "nowhere"]
    for words in ingests:
        done = run(["ingest", *words, *SETTINGS], dump.parent, AWS_SECRET_ACCESS_KEY="wrong")
        assert done.returncode == 2, done.stderr
        assert len(done.stderr.splitlines()) == 1, done.stderr
        assert "s3://chess/" in done.stderr
    assert hash_objects(store / "wrong") == {}
    with pytest.raises(FetchError, match="does not exist"):
        ingest(["s3://chess/nothing.pgn"], tmp_path / "out", CONFIG, workers=1)
    with pytest.raises(IngestError, match="s3://nobucket/x"):
        ingest([str(dump)], parse_path("s3://nobucket/x"), CONFIG, workers=1)


def test_a_resumed_ingest_writes_the_same_objects(
    store: Any,
    dump: Path,  # noqa: F811
    made: Path,  # noqa: F811
) -> None:
    local = datasets.content(made)
    command = [*COMMAND, "ingest", str(dump), "--out", "s3://chess/again", *SETTINGS]
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    rng, kills = random.Random(1), 0
    for count in (1, 4, 7, 9):  # objects in the store when it is killed
        with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL) as running:
            while running.poll() is None and len(store.fs.find("chess/again")) < count:
                time.sleep(0.05)
            time.sleep(rng.random() * 0.2)
            running.send_signal(signal.SIGKILL)
        kills += running.returncode == -signal.SIGKILL
        for name, digest in hash_objects(store / "again").items():
            assert local.get(name, digest) == digest
    assert kills >= 3
    done = run([*command[len(COMMAND) :], "--json"], dump.parent)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["out"] == "s3://chess/again"
    assert hash_objects(store / "again") == local
    assert compare_files(store / "again") == []
    assert_same_rows(store / "again", made)
