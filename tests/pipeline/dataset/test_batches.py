"""Batches permute the rows each epoch, are the same from any step, and are divided by rank."""

from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from engine.encoding.views import LAST_MOVES
from pipeline.dataset.batches import HUMAN_COLUMNS, Batches
from pipeline.dataset.files import shards
from pipeline.dataset.files.columns import BATCH_SENTINELS
from pipeline.dataset.files.shards import Batch
from pipeline.errors import ConfigError, DatasetError
from pipeline.ingest.chunk import IngestConfig
from pipeline.ingest.job import ingest
from tests.pipeline import datasets
from tests.pipeline.searched import dataset, playouts

COLUMNS = (*HUMAN_COLUMNS, *LAST_MOVES[1:])


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Make 1,000 training rows in three datasets with groups of 64; `game` numbers the rows."""
    rows = playouts(1070, 0) | {"game": np.arange(1070, dtype=np.uint32)}
    made = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shards, "ROW_GROUP", 64)
        for first, last, held_out in ((0, 500, 0), (500, 800, 0), (800, 1070, 70)):
            part = {name: values[first:last] for name, values in rows.items()}
            made.append(dataset(tmp_path_factory.mktemp("batches"), part, held_out=held_out))
    return made


def batches(paths: list[Path], split: str = "train", **options: Any) -> Batches:
    return Batches(paths, split, block_rows=200, **options)


def equal(one: Batch, other: Batch) -> bool:
    return one.keys() == other.keys() and all(
        np.array_equal(one[name], other[name]) for name in one
    )


def games(stream: Iterable[Batch]) -> np.ndarray[Any, Any]:
    return np.concatenate([batch["game"] for batch in stream])


@pytest.mark.parametrize("batch_size", [50, 130])
def test_each_epoch_is_another_permutation(paths: list[Path], batch_size: int) -> None:
    stream = batches(paths, batch_size=batch_size, seed=1).from_step(0)
    epochs = np.split(games(islice(stream, 3 * 1000 // batch_size + 1))[:3000], 3)
    for epoch in epochs:
        assert np.array_equal(np.sort(epoch), np.arange(1000))
    assert len({tuple(epoch) for epoch in (*epochs, np.arange(1000))}) == 4


def test_the_columns_of_a_row_stay_together(paths: list[Path]) -> None:
    tables = [datasets.join_planes(pq.read_table(path / "train-00000-0.parquet")) for path in paths]
    stored = {row["game"]: row for table in tables for row in table.to_pylist()}
    for batch in islice(batches(paths, batch_size=70, columns=COLUMNS).from_step(0), 14):
        for at, game in enumerate(batch["game"].tolist()):
            row = stored[game]
            assert batch["planes"][at].tobytes() == row["planes"]
            for name in COLUMNS[1:]:
                value = BATCH_SENTINELS[name] if row[name] is None else row[name]
                assert batch[name][at] == value, name


@pytest.mark.parametrize("batch_size", [64, 999, 1700])
def test_a_resumed_stream_has_the_same_batches(paths: list[Path], batch_size: int) -> None:
    count = 3 * 1000 // batch_size + 2
    whole = list(islice(batches(paths, batch_size=batch_size, seed=3).from_step(0), count))
    assert all(len(batch["game"]) == batch_size for batch in whole)
    for step in range(0, count, 1 + count // 20):
        resumed = next(batches(paths, batch_size=batch_size, seed=3).from_step(step))
        assert equal(resumed, whole[step]), f"step {step}"
    other = next(batches(paths, batch_size=batch_size, seed=4).from_step(0))
    assert not equal(other, whole[0])


@pytest.mark.parametrize("world", [3, 5])
def test_the_ranks_together_read_every_row_once_in_an_epoch(paths: list[Path], world: int) -> None:
    epochs: list[list[set[int]]] = [[], []]
    for rank in range(world):
        part = batches(paths, batch_size=10 * world, seed=1, rank=rank, world=world)
        rows = part.share[1] - part.share[0]
        assert rows in (1000 // world, 1000 // world + 1)
        stream = list(islice(part.from_step(0), 2 * rows // 10 + 1))
        assert {len(batch["game"]) for batch in stream} == {10}
        for epoch, found in enumerate(np.split(games(stream)[: 2 * rows], 2)):
            assert len(set(found.tolist())) == rows
            epochs[epoch].append(set(found.tolist()))
    for epoch in epochs:
        assert set().union(*epoch) == set(range(1000))
    assert epochs[0] != epochs[1], "a rank must get other rows in each epoch"


def test_read_rows_yields_every_row_in_file_order(paths: list[Path]) -> None:
    assert np.array_equal(games(batches(paths, batch_size=33).read_rows()), np.arange(1000))
    held_out = batches(paths[2:], "val", batch_size=33)
    assert np.array_equal(games(held_out.read_rows()), np.arange(1000, 1070))


@pytest.mark.parametrize("columns", ["planes label", "ply planes visits", "visits", "elo ply elo"])
def test_only_requested_columns_are_read(paths: list[Path], columns: str) -> None:
    rows = batches(paths, batch_size=10, columns=columns.split())
    assert list(next(rows.from_step(0))) == list(dict.fromkeys(columns.split()))
    assert set(next(rows.read_rows())) == set(columns.split())


@pytest.mark.parametrize(
    ("split", "options", "refusal", "words"),
    [
        ("train", {"batch_size": 0}, ConfigError, "divided"),
        ("train", {"batch_size": 50, "world": 3}, ConfigError, "divided"),
        ("train", {"rank": 2, "world": 2}, ConfigError, "divided"),
        ("train", {"batch_size": 2002, "world": 1001}, ConfigError, "divided"),
        ("test", {}, DatasetError, "no positions in its test split"),
        ("training", {}, DatasetError, "unknown split 'training'"),
        ("train", {"columns": ["planes", "elos"]}, ConfigError, "unknown column 'elos'"),
        ("train", {"columns": []}, ConfigError, "name at least one column"),
    ],
)
def test_invalid_settings_are_refused(
    paths: list[Path], split: str, options: dict[str, Any], refusal: type[Exception], words: str
) -> None:
    with pytest.raises(refusal, match=words):
        batches(paths, split, **options)


def test_samples_are_distinct_rows_and_all_rows_are_equally_likely(paths: list[Path]) -> None:
    """In 20 samples of 100 rows, each tenth of the rows has a tenth of the sampled rows."""
    tenths = np.zeros(10)
    for seed in range(20):
        sampled = games(batches(paths, batch_size=32, seed=seed).sample(100))
        assert len(set(sampled.tolist())) == len(sampled) == 100
        tenths += np.bincount(sampled // 100, minlength=10)
    assert np.abs(tenths - 200).max() < 5 * (200 * 0.9) ** 0.5
    everything = games(batches(paths, batch_size=999).sample(10**9))
    assert np.array_equal(everything, np.arange(1000))


def test_shuffling_does_not_undo_the_shuffle_of_ingest(tmp_path: Path) -> None:
    """The first batch of a dump with one chunk and one row group has rows of many games."""
    dump = datasets.dump(tmp_path / "games.pgn", 60)
    ingest([str(dump)], tmp_path / "out", IngestConfig(test_share=0.0, val_share=0.0), workers=1)
    for seed in range(3):
        rows = next(Batches([tmp_path / "out"], batch_size=120, seed=seed).from_step(0))
        assert len(set(rows["game"].tolist())) > 30
