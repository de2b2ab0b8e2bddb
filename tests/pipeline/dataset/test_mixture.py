"""Mixed batches: exact shares, limited reuse, exact resume, and rows without a search."""

from collections.abc import Iterable
from fractions import Fraction
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from pipeline.dataset.batches import HUMAN_COLUMNS, Batches
from pipeline.dataset.files import shards
from pipeline.dataset.files.shards import Batch
from pipeline.dataset.mixture import Mixture, Source
from pipeline.errors import ConfigError
from tests.pipeline.dataset.test_batches import equal, games
from tests.pipeline.searched import dataset, legal_labels, playouts

SEARCHED = (*HUMAN_COLUMNS, "visits", "root_value")
THIRD = Fraction(1, 3)
ROWS = {"human": 130, "one": 150, "two": 90}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Make human rows and two generations of self-play in row groups of 16."""
    where = tmp_path_factory.mktemp("mixture")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shards, "ROW_GROUP", 16)
        return {
            name: dataset(
                where / name,
                playouts(count, seed=number),
                None if name == "human" else make_visits,
                lambda row: None if row % 2 else row / 1000,
            )
            for number, (name, count) in enumerate(ROWS.items(), 1)
        }


def make_visits(rows: Any, row: int) -> Any:
    """Return 0 to 4 moves per row, or None in every other group of 16 rows."""
    if row // 16 % 2:
        return None
    return [{"label": label, "share": 0.25} for label in legal_labels(rows, row)[: row % 5]]


def read_batches(folder: Path, size: int = 24) -> Batches:
    return Batches([folder], batch_size=size, columns=SEARCHED, block_rows=40)


def mixture(
    folders: dict[str, Path], size: int = 24, takes: tuple[int, int] = (150, 90), **options: Any
) -> Mixture:
    human, one, two = (read_batches(folders[name], size) for name in ROWS)
    generations = [Source(one, takes=takes[0]), Source(two, takes=takes[1])]
    return Mixture(Source(human), generations, batch_size=size, human_share=THIRD, **options)


def count_by_batch(rows: Iterable[Batch], source: int) -> np.ndarray[Any, Any]:
    """Count the rows of a source, numbered from 1, in each batch."""
    return np.array([np.count_nonzero(batch["game"] // 100_000 == source) for batch in rows])


def equal_columns(one: Batch, other: Batch) -> bool:
    """Compare batches that have visits and NaNs."""
    plain = ({name: batch[name] for name in HUMAN_COLUMNS} for batch in (one, other))
    visits = [
        [None if it is None else it.tolist() for it in batch["visits"]] for batch in (one, other)
    ]
    roots = np.array_equal(one["root_value"], other["root_value"], equal_nan=True)
    return equal(*plain) and visits[0] == visits[1] and roots


def test_rows_without_a_search_have_none_though_block_memory_is_reused(
    folders: dict[str, Path],
) -> None:
    """Three epochs in small blocks reuse the memory of searched rows for rows without a search."""
    both = [folders["human"], folders["one"]]
    tables = [pq.read_table(it / "train-00000-0.parquet").to_pylist() for it in both]
    stored = {row["game"]: row for table in tables for row in table}
    moves_seen = 0
    stream = Batches(both, batch_size=28, columns=SEARCHED, block_rows=40)
    for batch in islice(stream.from_step(0), 30):
        assert set(batch) == set(SEARCHED)
        columns = (batch[name].tolist() for name in ("game", "visits", "root_value"))
        for game, moves, value in zip(*columns, strict=True):
            expected = stored[game]["visits"]
            assert (moves is None) == (expected is None)
            assert (None if np.isnan(value) else value) == stored[game]["root_value"]
            if moves is not None:
                assert moves.tolist() == [(it["label"], it["share"]) for it in expected]
                moves_seen += len(moves)
    assert moves_seen > 400


@pytest.mark.parametrize("size", [7, 24])
def test_the_human_share_is_exact_and_self_play_rows_are_used_once(
    folders: dict[str, Path], size: int
) -> None:
    mixed = mixture(folders, size)
    assert mixed.steps == 240 * 3 // (2 * size)
    batches = list(mixed.from_step(0))
    assert [len(batch["game"]) for batch in batches] == [size] * mixed.steps
    human = np.cumsum(count_by_batch(batches, 1))
    missing = np.arange(1, mixed.steps + 1) * size - 3 * human
    assert set(missing.tolist()) <= {0, 1, 2}, "thirds of a row by which human rows fall short"
    assert human[-1] < 130
    rows = games(batches)
    assert len(np.unique(rows)) == len(rows)


def test_the_rows_of_each_generation_are_spread_over_the_run(folders: dict[str, Path]) -> None:
    mixed = mixture(folders, 24, takes=(144, 48))
    batches = list(mixed.from_step(0))
    ones, twos = count_by_batch(batches, 2), count_by_batch(batches, 3)
    assert (ones.sum(), twos.sum()) == (144, 48)
    assert (ones + twos).tolist() == [16] * 12
    assert ones[:6].sum() == pytest.approx(72, abs=18), "hypergeometric: its deviation is 4.2 rows"
    human_by_place = np.stack([batch["game"] // 100_000 == 1 for batch in batches]).mean(0)
    assert human_by_place.min() > 0
    assert human_by_place.max() < 1
    assert np.array_equal(mixed.count_rows(0, 12), [96, 144, 48])


def test_a_resumed_stream_has_the_same_batches(folders: dict[str, Path]) -> None:
    whole = list(mixture(folders, 20, seed=3).from_step(0))
    assert len(whole) == 18
    for step in (0, 1, 6, 11, 17):
        resumed = list(islice(mixture(folders, 20, seed=3).from_step(step), 2))
        assert all(map(equal_columns, resumed, whole[step:])), f"step {step}"
    other = next(mixture(folders, 20, seed=4).from_step(0))
    assert not np.array_equal(other["game"], whole[0]["game"])


def test_ranks_divide_every_batch(folders: dict[str, Path]) -> None:
    whole = list(mixture(folders).from_step(5))
    parts = [list(mixture(folders, rank=rank, world=3).from_step(5)) for rank in range(3)]
    for batch, *shares in zip(whole, *parts, strict=True):
        assert [len(share["game"]) for share in shares] == [8, 8, 8]
        rows = np.stack([share["game"] for share in shares], 1).reshape(-1)
        assert np.array_equal(rows, batch["game"])


def test_a_run_can_begin_at_the_row_where_another_ended(folders: dict[str, Path]) -> None:
    def take(first: int, count: int) -> np.ndarray[Any, Any]:
        source = Source(read_batches(folders["one"]), first, count)
        run = Mixture(None, [source], batch_size=24, human_share=Fraction(0))
        return games(run.from_step(0))

    rows = np.concatenate([take(0, 72), take(72, 48), take(120, 48)])
    assert len(np.unique(rows[:120])) == 120
    _, uses = np.unique(rows, return_counts=True)
    assert np.array_equal(np.bincount(uses), [0, 132, 18]), "18 of 150 rows are used again"


def test_invalid_mixtures_are_refused(folders: dict[str, Path]) -> None:
    source = Source(read_batches(folders["one"]), takes=50)
    with pytest.raises(ConfigError, match="divided equally among 5 processes"):
        mixture(folders, world=5)
    for human, share in ((None, THIRD), (source, Fraction(0)), (source, Fraction(1))):
        with pytest.raises(ConfigError, match="human_share"):
            Mixture(human, [source], batch_size=24, human_share=share)
