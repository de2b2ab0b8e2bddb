"""The keys of train are kept under the hashes of its files, and found again; what is damaged is made anew."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from pipeline.dataset import train_keys as module
from pipeline.dataset.position_keys import KEYED_BY, position_keys
from pipeline.dataset.strata import Thinning
from pipeline.dataset.train_keys import stand_in
from pipeline.dataset.training_set import Shard, row_groups, split_shards
from pipeline.errors import Stopped
from pipeline.ingest.chunk import IngestConfig
from pipeline.ingest.job import ingest
from tests.pipeline import datasets


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(module, "KEPT_FROM", 1)
    monkeypatch.setattr(module, "_BLOCK_KEYS", 100)
    monkeypatch.setenv("FIANCHETTO_CACHE", str(tmp_path / "cache"))
    dump = datasets.dump(tmp_path / "games.pgn", 30)
    (tmp_path / "sets").mkdir()
    ingest([str(dump)], tmp_path / "sets" / "a", IngestConfig(test_share=0.3, planes="compact"), workers=1)
    return tmp_path / "sets" / "a"


def asked(directory: Path) -> np.ndarray:
    keys = [
        position_keys(rows["planes"], rows["castling"])
        for rows in row_groups(split_shards(directory, "test"), KEYED_BY)
    ]
    return np.concatenate([*keys, np.arange(1000, dtype=np.uint64)])


def truth(directory: Path, keys: np.ndarray) -> list[bool]:
    rows = [row for row in datasets.table(directory).to_pylist() if row["split"] == "train"]
    planes = np.stack([np.frombuffer(row["planes"], "<u8") for row in rows])
    train = set(position_keys(planes, np.array([row["castling"] for row in rows])).tolist())
    return [key in train for key in keys.tolist()]


def kept(folder: Path) -> list[Path]:
    return sorted(folder.glob(".a.keys-*"))


def test_they_are_kept_beside_the_dataset_and_used_again(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys, shards = asked(made), split_shards(made, "train")
    expected = truth(made, keys)
    assert any(expected)
    assert stand_in(keys, shards).tolist() == expected
    (path,) = kept(made.parent)
    with monkeypatch.context() as patch:
        patch.setattr(module, "row_groups", lambda *_: pytest.fail("rows are read again"))
        assert stand_in(keys, shards).tolist() == expected
    for damage in (lambda data: data[:-9], lambda data: b"", lambda data: b"x" + data[1:]):
        path.write_bytes(damage(path.read_bytes()))
        assert stand_in(keys, shards).tolist() == expected


def test_another_dataset_of_the_name_has_other_keys_and_the_old_ones_go(made: Path, tmp_path: Path) -> None:
    keys = asked(made)
    stand_in(keys, split_shards(made, "train"))
    (before,) = kept(made.parent)
    shutil.rmtree(made)
    dump = datasets.dump(tmp_path / "others.pgn", 10, first=500)
    ingest([str(dump)], made, IngestConfig(test_share=0.3), workers=1)
    assert stand_in(keys, split_shards(made, "train")).tolist() == truth(made, keys)
    (after,) = kept(made.parent)
    assert after != before


def test_a_thinned_train_has_keys_of_its_own(made: Path) -> None:
    keys = asked(made)
    whole = split_shards(made, "train")
    rates = tuple((0.5,) * 6 for _ in range(3))
    thin = [Shard(it.path, it.rows, it.games, Thinning((1000, 2000)[:1], rates, 7)) for it in whole]
    some, every = stand_in(keys, thin), stand_in(keys, whole)
    assert 0 < some.sum() < every.sum()
    assert len(kept(made.parent)) == 2


def test_a_folder_that_cannot_be_written_leaves_them_to_the_cache(
    made: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    keys = asked(made)
    expected = truth(made, keys)
    real = module._keep

    def refuse(path: Path, *rest: object) -> None:
        if path.parent == made.parent:
            raise PermissionError(13, "Permission denied")
        real(path, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(module, "_keep", refuse)
    assert stand_in(keys, split_shards(made, "train")).tolist() == expected
    assert not kept(made.parent)
    assert len(kept(tmp_path / "cache" / "keys")) == 1


def test_it_stops_when_asked(made: Path) -> None:
    with pytest.raises(Stopped):
        stand_in(asked(made), split_shards(made, "train"), lambda: True)
    assert not kept(made.parent)
