"""What may lie in a store, by the table in pipeline/README.md: a store in memory here, a real S3
server in test_objects_s3.py."""

import json
import random
from pathlib import Path

import pytest

from pipeline.dataset.batches import Batches
from pipeline.dataset.files.verify_files import CACHE_VARIABLE
from pipeline.errors import DatasetError
from pipeline.storage import stores
from pipeline.validation.verify import compare_files
from tests.pipeline.cli.conftest import invoke
from tests.pipeline.datasets import random_game
from tests.pipeline.hostile import copied, workplace
from tests.pipeline.storage import elsewhere
from tests.waiting import drop_slow_lines


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make datasets and a checkpoint on this machine."""
    return workplace(tmp_path_factory.mktemp("elsewhere") / "good")


def test_what_takes_an_address_takes_it_and_the_rest_says_so(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = copied(place, tmp_path / "here")
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    store = f"memory://bucket/{random.randrange(1 << 40)}"
    text = "".join(random_game(seed, 24) for seed in range(30)).encode()
    stores.publish(stores.parse_path(store), "a.pgn", 0, lambda target: target.write(text))
    answers = {}
    for name, words in elsewhere.taken(store, here, f"{store}/a.pgn").items():
        code, out, err = invoke(*words, "--json")
        assert (code, drop_slow_lines(err)) == (0, ""), f"{name}: {err}"
        answers[name] = json.loads(out.splitlines()[-1])
    assert answers["report"]["positions"] == answers["ingest"]["positions"]["test"]
    assert answers["report"]["slices"]["in train"], "positions were looked up in train there too"
    for name, words in elsewhere.refused(store, here).items():
        code, out, err = invoke(*words, "--json")
        assert (code, out) == (2, ""), f"{name}: {out}{err}"
        assert "memory://" in err, f"{name}: {err}"
        assert err.count("\n") == 1, f"{name}: {err}"
    assert list((tmp_path / "work").iterdir()) == [], "no folder is named after an address"
    assert not (here / "out").exists()


def test_a_changed_object_is_refused(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    folder = stores.parse_path(f"memory://bucket/{random.randrange(1 << 40)}")
    for path in (place / "positions" / "2014.05").iterdir():
        if path.is_file() and not path.name.startswith("."):
            (folder / path.name).write_bytes(path.read_bytes())
    monkeypatch.setattr(
        "pipeline.dataset.files.verify_files.file_hash",
        lambda path, *_: pytest.fail(f"downloaded {path}"),
    )
    assert Batches([folder]).rows
    shard = folder / "train-00000-0.parquet"
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 1
    shard.write_bytes(bytes(data))
    assert compare_files(folder) == ["train-00000-0.parquet: does not match its hash"]
    shard.write_bytes(bytes(data[:-1]))
    with pytest.raises(DatasetError, match=r"bytes, not"):
        Batches([folder])
    shard.unlink()
    with pytest.raises(DatasetError, match="it is missing"):
        Batches([folder])
