"""Batches: a permutation of the rows each epoch, the same from any step, shared out by rank."""

import shutil
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from engine.board.movegen import MOVE_PLANES
from engine.board.position import KING
from engine.encoding.planes import PLANES
from pipeline.dataset import batches
from pipeline.dataset import dataset as datasets
from pipeline.dataset.batches import Batches
from pipeline.dataset.files import shards
from pipeline.dataset.files.columns import BATCH_SENTINELS
from pipeline.dataset.files.shards import (
    Batch,
    ShardReader,
    publish,
    publish_json,
    write_rows,
)
from pipeline.errors import ConfigError, DatasetError
from pipeline.ingest.chunk import IngestConfig
from pipeline.ingest.job import ingest
from tests.pipeline.datasets import plain_manifest, planes_table, random_game, with_planes

COLUMNS = {
    "label": np.uint16, "promotion": np.uint8, "castling": np.uint8, "ep_file": np.uint8,
    "halfmove": np.uint8, "repetition": np.uint8, "result": np.int8, "ply": np.uint16,
    "plies": np.uint16, "game": np.uint32, "eval": np.int16, "clock": np.uint16, "elo": np.uint16,
    "opponent_elo": np.uint16, "base": np.uint16, "increment": np.uint8, "last_move": np.uint16,
}  # fmt: skip
SIZES = {"promotion": 1, "castling": 16, "ep_file": 8, "result": 2}
"""Columns that do not have 100 values."""


def shard(directory: Path, name: str, first: int, rows: int) -> dict[str, object]:
    """Write a shard of random rows whose `game` numbers them from `first` on; every third value
    that may be is null."""
    chance = np.random.default_rng(first)
    planes = chance.integers(0, 2**64, (rows, PLANES), dtype=np.uint64)
    columns = {
        key: chance.integers(0, SIZES.get(key, 100), rows).astype(kind)
        for key, kind in COLUMNS.items()
    }
    for _ in range(5):  # some 130 legal moves a row
        planes[:, MOVE_PLANES:] &= chance.integers(
            0, 2**64, (rows, PLANES - MOVE_PLANES), dtype=np.uint64
        )
    planes[:, KING : KING + 2] = np.uint64(1) << chance.integers(0, 64, (rows, 2), dtype=np.uint64)
    label = columns["label"].astype(np.int64)
    planes[np.arange(rows), MOVE_PLANES + label // 64] |= np.uint64(1) << (label % 64).astype(
        np.uint64
    )
    for key in columns.keys() & BATCH_SENTINELS.keys():
        columns[key][::3] = BATCH_SENTINELS[key]
    columns["game"] = np.arange(first, first + rows, dtype=np.uint32)
    done = publish(
        directory, name, rows, lambda target: write_rows(planes_table(planes, columns), target)
    )
    return {
        "name": name,
        "split": name.partition("-")[0],
        "rows": rows,
        "bytes": done.bytes,
        "sha256": done.sha256,
    }


@pytest.fixture
def dataset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a dataset of 1,000 training rows in three shards of row groups of 64, and shuffle in
    blocks of 200."""
    monkeypatch.setattr(shards, "ROW_GROUP", 64)
    monkeypatch.setattr(batches, "BLOCK_ROWS", 200)
    files = [
        shard(tmp_path, "train-00000-0.parquet", 0, 500),
        shard(tmp_path, "train-00001-0.parquet", 500, 300),
        shard(tmp_path, "train-00002-0.parquet", 800, 200),
        shard(tmp_path, "test-00000-0.parquet", 5000, 70),
    ]
    publish_json(tmp_path, "manifest.json", plain_manifest(files, games=10_000))
    return tmp_path


def equal(one: Batch, other: Batch) -> bool:
    return one.keys() == other.keys() and all(
        np.array_equal(one[name], other[name]) for name in one
    )


@pytest.mark.parametrize("batch_size", [50, 130])
def test_an_epoch_is_a_permutation_of_the_rows_and_the_next_is_another(
    dataset: Path, batch_size: int
) -> None:
    rows = Batches([dataset], batch_size=batch_size, seed=1)
    assert len(rows.groups) == 8 + 5 + 4
    stream = islice(rows.from_step(0), 3 * 1000 // batch_size + 1)
    games = np.concatenate([batch["game"] for batch in stream])
    epochs = np.split(games[:3000], 3)
    for epoch in epochs:
        assert np.array_equal(np.sort(epoch), np.arange(1000))
        assert not np.array_equal(epoch, np.arange(1000))
    assert not np.array_equal(epochs[0], epochs[1])
    assert not np.array_equal(epochs[1], epochs[2])


def test_rows_travel_whole(dataset: Path) -> None:
    stored = {
        row["game"]: row
        for path in sorted(dataset.glob("train-*"))
        for row in with_planes(pq.read_table(path)).to_pylist()
    }
    for batch in islice(Batches([dataset], batch_size=70).from_step(0), 14):
        types = {name: values.dtype for name, values in batch.items() if name != "planes"}
        assert types == {name: np.dtype(kind) for name, kind in COLUMNS.items()}
        for at, game in enumerate(batch["game"].tolist()):
            row = stored[game]
            assert batch["planes"][at].tobytes() == row["planes"]
            for name in COLUMNS:
                value = BATCH_SENTINELS[name] if row[name] is None else row[name]
                assert batch[name][at] == value, name


@pytest.mark.parametrize("batch_size", [50, 64, 130, 999, 1000, 1700])
def test_any_step_is_the_same_as_in_an_undisturbed_stream(dataset: Path, batch_size: int) -> None:
    count = 3 * 1000 // batch_size + 2
    whole = list(islice(Batches([dataset], batch_size=batch_size, seed=3).from_step(0), count))
    assert all(len(batch["game"]) == batch_size for batch in whole)
    for step in range(count):
        again = next(Batches([dataset], batch_size=batch_size, seed=3).from_step(step))
        assert equal(again, whole[step]), f"step {step}"
    other = next(Batches([dataset], batch_size=batch_size, seed=4).from_step(0))
    assert not equal(other, whole[0])


def ranks(dataset: Path, world: int, **options: int) -> list[Batches]:
    return [Batches([dataset], rank=rank, world=world, **options) for rank in range(world)]


@pytest.mark.parametrize("world", [2, 3, 7])
def test_ranks_read_row_groups_of_their_own_and_no_row_is_twice_in_an_epoch(
    dataset: Path, monkeypatch: pytest.MonkeyPatch, world: int
) -> None:
    """Three epochs of 17 row groups: each row once an epoch, and each rank decodes about its part
    of the rows."""
    decoded: list[tuple[str, int]] = []
    real = ShardReader.read

    def read(self: ShardReader, group: int, *args: Any, **options: Any) -> Batch:
        decoded.append((f"{self.path}", group))
        return real(self, group, *args, **options)

    monkeypatch.setattr(ShardReader, "read", read)
    shared = ranks(dataset, world, batch_size=10 * world, seed=5)
    groups = len(shared[0].groups)
    for epoch in range(3):
        games, read_by = [], []
        for rank in shared:
            first, last = rank.share
            assert last - first in (1000 // world, 1000 // world + 1)
            decoded.clear()
            rows = [
                rank._rows(part.group)["game"][part.first : part.last]
                for part in rank._parts(epoch)
            ]
            games.append(np.concatenate(rows))
            assert len(games[-1]) == last - first
            read_by.append(set(decoded))
            assert len(decoded) == len(read_by[-1]) <= groups / world + 2.5
        assert np.array_equal(np.sort(np.concatenate(games)), np.arange(1000))
        assert len(set().union(*read_by)) == groups
        assert sum(map(len, read_by)) <= groups + world - 1, (
            "only a group that a cut goes through is read by two"
        )


def test_the_batches_of_ranks_are_equal_parts_and_an_epoch_of_them_is_every_row(
    dataset: Path,
) -> None:
    streams = [rank.from_step(0) for rank in ranks(dataset, 5, batch_size=50, seed=1)]
    epochs = []
    for _ in range(2):
        parts = [np.stack([batch["game"] for batch in islice(stream, 20)]) for stream in streams]
        assert [part.shape for part in parts] == [(20, 10)] * 5
        assert np.array_equal(np.sort(np.concatenate(parts, axis=None)), np.arange(1000))
        epochs.append([set(part.reshape(-1).tolist()) for part in parts])
    assert epochs[0] != epochs[1], "a rank's rows are others in each epoch"


def test_the_footer_that_was_not_used_longest_is_dropped(
    dataset: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches, "FOOTERS", 2)
    read: list[str] = []
    real = datasets.open_shard

    def counted(path: Path, groups: Any, metadata: Any, wanted: Any) -> Any:
        if metadata is None:
            read.append(path.name[6:11])
        return real(path, groups, metadata, wanted)

    monkeypatch.setattr(datasets, "open_shard", counted)
    stream = Batches([dataset])
    groups = {group.shard.path.name[6:11]: group for group in stream.groups}
    for number in "01021":
        stream._rows(groups[f"0000{number}"])
    assert read == ["00000", "00001", "00002", "00001"], "the first was in use all the time"


def test_once_gives_every_row_in_the_order_of_the_files(dataset: Path) -> None:
    rows = Batches([dataset], batch_size=33)
    assert rows.rows == 1000
    assert np.array_equal(
        np.concatenate([batch["game"] for batch in rows.read_rows()]), np.arange(1000)
    )
    held_out = Batches([dataset], "test", batch_size=33)
    assert np.array_equal(
        np.concatenate([batch["game"] for batch in held_out.read_rows()]), np.arange(5000, 5070)
    )


def test_several_datasets_are_one_stream(
    dataset: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    other = shutil.copytree(dataset, tmp_path_factory.mktemp("other") / "copy")
    both = Batches([dataset, other], batch_size=100)
    rows = np.concatenate([batch["game"] for batch in islice(both.from_step(0), 20)])
    assert np.array_equal(np.sort(rows), np.repeat(np.arange(1000), 2))


@pytest.mark.parametrize(
    "columns", ["planes label", "planes", "ply planes visits", "elo", "visits", "elo ply elo"]
)
def test_only_the_columns_asked_for_are_read_and_each_once(dataset: Path, columns: str) -> None:
    rows = Batches([dataset], batch_size=10, columns=columns.split())
    assert list(next(rows.from_step(0))) == list(dict.fromkeys(columns.split()))
    assert set(next(rows.read_rows())) == set(columns.split())


@pytest.mark.parametrize(
    "arguments",
    [
        {"batch_size": 0},
        {"batch_size": 50, "world": 3},
        {"rank": 2, "world": 2},
        {"rank": -1},
        {"batch_size": 2002, "world": 1001},
    ],
)
def test_batches_that_cannot_be_shared_are_refused(
    dataset: Path, arguments: dict[str, int]
) -> None:
    with pytest.raises(ConfigError, match=r"cannot be (divided among|shared by)"):
        Batches([dataset], **arguments)


def test_a_split_that_is_not_there_is_named(dataset: Path) -> None:
    with pytest.raises(DatasetError, match="no positions in its val split"):
        Batches([dataset], "val")
    with pytest.raises(DatasetError, match="no split 'training'"):
        Batches([dataset], "training")


def test_rows_are_drawn_from_all_of_them_and_none_twice(dataset: Path) -> None:
    """Each of 1,000 rows is as likely as another: of 40 draws of 100 rows, each tenth of the rows
    has a tenth."""
    tenths = np.zeros(10)
    for seed in range(40):
        found = list(Batches([dataset], batch_size=32, seed=seed).sample(100))
        games = np.concatenate([batch["game"] for batch in found])
        assert len(set(games.tolist())) == len(games) == 100
        tenths += np.bincount(games // 100, minlength=10)
    assert np.abs(tenths - 400).max() < 5 * (400 * 0.9) ** 0.5
    everything = np.concatenate(
        [batch["game"] for batch in Batches([dataset], batch_size=999).sample(10**9)]
    )
    assert np.array_equal(everything, np.arange(1000))


def test_what_ingest_has_shuffled_is_not_put_in_order_again(tmp_path: Path) -> None:
    """A dump of one chunk and one row group, with the seeds as they come: its first batch is of
    many games."""
    dump = tmp_path / "games.pgn"
    dump.write_text("\n".join(random_game(seed) for seed in range(60)))
    ingest([str(dump)], tmp_path / "out", IngestConfig(test_share=0.0, val_share=0.0), workers=1)
    for seed in range(3):
        games = next(Batches([tmp_path / "out"], batch_size=120, seed=seed).from_step(0))["game"]
        assert len(set(games.tolist())) > 30
