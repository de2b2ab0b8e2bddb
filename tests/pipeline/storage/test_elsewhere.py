"""Commands accept or refuse URLs of stores as the table in pipeline/README.md says."""

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
from tests.pipeline.hostile import copy_workplace, workplace
from tests.waiting import drop_slow_lines

TRAINING = ["--steps", "1", "--batch-size", "16", "--set", "threads=1"]
INGEST = "--set chunk_mib=1 --set test_share=0.2 --set val_share=0.1 --workers 1"


def accepted_commands(store: str, here: Path, dump: str) -> dict[str, list[str]]:
    """Return commands that accept URLs, in an order in which each finds its inputs."""
    made, net = f"{store}/made", str(here / "net")
    report = ["report", "--checkpoint", net, "--positions", made, "--out", str(here / "report")]
    return {
        "estimate": ["ingest", dump, "--estimate", "--workers", "1"],
        "ingest": ["ingest", dump, "--out", made, *INGEST.split()],
        "train": ["train", "--positions", made, "--out", str(here / "trained"), *TRAINING],
        "report": report,
    }


def refused_commands(store: str, here: Path) -> dict[str, list[str]]:
    """Return commands that accept only folders, each with a URL."""
    made, out = f"{store}/made", f"{store}/out"
    net, data = str(here / "net"), str(here / "positions" / "2014.05")
    train = ["train", "--positions", data, *TRAINING, "--out"]
    report = ["report", "--positions", data, "--checkpoint"]
    return {
        "join": ["join", made, "--out", str(here / "out")],
        "join --out": ["join", data, "--out", out],
        "audit": ["audit", made],
        "audit --out": ["audit", data, "--out", out],
        "verify": ["verify", made],
        "train --out": [*train, out],
        "train --start": [*train, str(here / "out"), "--start", f"{store}/net"],
        "report --checkpoint": [*report, f"{store}/net"],
        "report --against": [*report, net, "--against", made],
        "report --out": [*report, net, "--out", out],
        "finetune": ["finetune", "--checkpoint", net, "--out", out, "--generations", "1"],
        "selfplay": ["selfplay", "--checkpoint", net, "--out", out, "--games", "1"],
        "arena": ["arena", "uniform", "hand-written", "--out", out],
        "fetch": ["fetch", "2013-01", "--out", out],
    }


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make datasets and a checkpoint on this machine."""
    return workplace(tmp_path_factory.mktemp("elsewhere") / "good")


def test_commands_accept_urls_or_refuse_them_in_one_line(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = copy_workplace(place, tmp_path / "here")
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    store = f"memory://bucket/{random.randrange(1 << 40)}"
    text = "".join(random_game(seed, 24) for seed in range(30)).encode()
    stores.publish_bytes(stores.parse_path(store), "a.pgn", text)
    answers = {}
    for name, words in accepted_commands(store, here, f"{store}/a.pgn").items():
        code, out, err = invoke(*words, "--json")
        assert (code, drop_slow_lines(err)) == (0, ""), f"{name}: {err}"
        answers[name] = json.loads(out.splitlines()[-1])
    assert answers["report"]["positions"] == answers["ingest"]["positions"]["test"]
    assert answers["report"]["slices"]["in train"], "positions were looked up in train"
    for name, words in refused_commands(store, here).items():
        code, out, err = invoke(*words, "--json")
        assert (code, out) == (2, ""), f"{name}: {out}{err}"
        assert "memory://" in err, f"{name}: {err}"
        assert err.count("\n") == 1, f"{name}: {err}"
    assert list((tmp_path / "work").iterdir()) == [], "no folder is named after a URL"
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
        "pipeline.dataset.files.verify_files.hash_file",
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
