"""Mixed batches: exact shares, limited reuse, exact resume, and missing optional columns."""

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
from tests.pipeline.dataset.test_batches import equal
from tests.pipeline.searched import dataset, legal_labels, playouts

SEARCHED = (*HUMAN_COLUMNS, "visits", "root_value")
THIRD = Fraction(1, 3)
ROWS = {"human": 130, "one": 150, "two": 90}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Make human rows and two generations of self-play in row groups of 16."""
    where = tmp_path_factory.mktemp("mixture")
    made = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shards, "ROW_GROUP", 16)
        for number, (name, count) in enumerate(ROWS.items()):
            rows = playouts(count, seed=number + 1)
            made[name] = dataset(where / name, rows, None if name == "human" else some_moves, half)
    return made


def some_moves(rows: Any, row: int) -> Any:
    """Return 0 to 4 moves per row, None in every other group of 16 rows."""
    if row // 16 % 2:
        return None
    return [{"label": label, "share": 0.25} for label in legal_labels(rows, row)[: row % 5]]


def half(row: int) -> float | None:
    return None if row % 2 else row / 1000


def streams(folders: dict[str, Path], size: int = 24, **options: Any) -> dict[str, Batches]:
    return {
        name: Batches([folder], batch_size=size, columns=SEARCHED, block_rows=40, **options)
        for name, folder in folders.items()
    }


def mixture(
    folders: dict[str, Path], size: int = 24, takes: tuple[int, int] = (150, 90), **options: Any
) -> Mixture:
    opened = streams(folders, size)
    generations = [Source(opened["one"], takes=takes[0]), Source(opened["two"], takes=takes[1])]
    return Mixture(
        Source(opened["human"]), generations, batch_size=size, human_share=THIRD, **options
    )


def games(rows: list[Batch]) -> np.ndarray[Any, Any]:
    return np.concatenate([batch["game"] for batch in rows])


def equal_columns(one: Batch, other: Batch) -> bool:
    """Compare batches that hold visits and NaNs."""
    plain = ({name: batch[name] for name in HUMAN_COLUMNS} for batch in (one, other))
    visits = [
        [None if it is None else it.tolist() for it in batch["visits"]] for batch in (one, other)
    ]
    roots = np.array_equal(one["root_value"], other["root_value"], equal_nan=True)
    return equal(*plain) and visits[0] == visits[1] and roots


def test_rows_without_a_search_hold_none_whatever_their_memory_held(
    folders: dict[str, Path],
) -> None:
    """Three epochs in small blocks, so that memory of searched rows is used again for others."""
    both = [folders["human"], folders["one"]]
    tables = [pq.read_table(it / "train-00000-0.parquet").to_pylist() for it in both]
    stored = {row["game"]: row for table in tables for row in table}
    names = ("label", "share")
    seen = 0
    stream = Batches(both, batch_size=28, columns=SEARCHED, block_rows=40)
    for batch in islice(stream.from_step(0), 30):
        assert set(batch) == set(SEARCHED)
        rows = zip(
            *(batch[name].tolist() for name in ("game", "visits", "root_value")), strict=True
        )
        for game, moves, value in rows:
            expected = stored[game]["visits"]
            assert (moves is None) == (expected is None)
            assert (None if np.isnan(value) else value) == stored[game]["root_value"]
            if moves is not None:
                assert moves.tolist() == [tuple(it[name] for name in names) for it in expected]
                seen += len(moves)
    assert seen > 400


@pytest.mark.parametrize("size", [7, 24])
def test_the_share_of_human_rows_is_exact_and_a_self_play_row_comes_once(
    folders: dict[str, Path], size: int
) -> None:
    mixed = mixture(folders, size)
    assert mixed.steps == 240 * 3 // (2 * size)
    batches = [batch["game"] for batch in mixed.from_step(0)]
    assert [len(batch) for batch in batches] == [size] * mixed.steps
    people = np.cumsum([np.count_nonzero(batch < 200_000) for batch in batches])
    owed = np.arange(1, mixed.steps + 1) * size - 3 * people
    assert set(owed.tolist()) <= {0, 1, 2}, "less than a row is owed, in thirds"
    assert people[-1] < 130
    rows = np.concatenate(batches)
    assert len(np.unique(rows)) == len(rows), "no human row twice before all were used"


def test_each_generation_gives_what_it_is_to_give_evenly_over_the_run(
    folders: dict[str, Path],
) -> None:
    mixed = mixture(folders, 24, takes=(144, 48))
    rows = [batch["game"] for batch in mixed.from_step(0)]
    ones = np.array([np.count_nonzero(batch // 100_000 == 2) for batch in rows])
    twos = np.array([np.count_nonzero(batch // 100_000 == 3) for batch in rows])
    assert (ones.sum(), twos.sum()) == (144, 48)
    assert (ones + twos).tolist() == [16] * 12
    assert ones[:6].sum() == pytest.approx(72, abs=18), "hypergeometric: its deviation is 4.2 rows"
    kinds = np.stack([batch // 100_000 == 1 for batch in rows]).mean(0)
    assert kinds.min() > 0
    assert kinds.max() < 1, "no place of a batch is human rows' alone"
    assert np.array_equal(mixed.count_rows(0, 12), [96, 144, 48])


def test_any_step_is_the_same_as_in_an_undisturbed_stream(folders: dict[str, Path]) -> None:
    whole = list(mixture(folders, 20, seed=3).from_step(0))
    assert len(whole) == 18
    for step in (0, 1, 6, 11, 17):
        again = list(islice(mixture(folders, 20, seed=3).from_step(step), 2))
        assert all(equal_columns(*pair) for pair in zip(again, whole[step:], strict=False)), (
            f"step {step}"
        )
    other = next(mixture(folders, 20, seed=4).from_step(0))
    assert not np.array_equal(other["game"], whole[0]["game"])


def test_ranks_part_every_batch(folders: dict[str, Path]) -> None:
    whole = list(mixture(folders).from_step(5))
    parts = [list(mixture(folders, rank=rank, world=3).from_step(5)) for rank in range(3)]
    for step, batch in enumerate(whole):
        shares = [part[step] for part in parts]
        assert [len(share["game"]) for share in shares] == [8, 8, 8]
        assert np.array_equal(
            np.stack([share["game"] for share in shares], 1).reshape(-1), batch["game"]
        )


def test_a_run_may_begin_where_another_ended(folders: dict[str, Path]) -> None:
    def part(first: int, takes: int) -> np.ndarray[Any, Any]:
        source = Source(streams(folders)["one"], first, takes)
        return games(
            list(Mixture(None, [source], batch_size=24, human_share=Fraction(0)).from_step(0))
        )

    rows = np.concatenate([part(0, 72), part(72, 48), part(120, 48)])
    assert len(np.unique(rows[:120])) == 120
    _, uses = np.unique(rows, return_counts=True)
    assert np.array_equal(np.bincount(uses), [0, 132, 18]), (
        "each of the 150 rows once, and only then again"
    )


def test_mixtures_that_cannot_be_are_refused(folders: dict[str, Path]) -> None:
    source = Source(streams(folders)["one"], takes=50)
    with pytest.raises(ConfigError, match="divided equally among 5 processes"):
        mixture(folders, world=5)
    for human, share in ((None, THIRD), (source, Fraction(0)), (source, Fraction(1))):
        with pytest.raises(ConfigError, match="human_share"):
            Mixture(human, [source], batch_size=24, human_share=share)
