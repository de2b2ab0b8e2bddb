"""A tally counts as a Counter does, whatever its files, and its files stay small."""

import random
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from pipeline.dataset import tally
from pipeline.dataset.tally import Tally
from pipeline.errors import ConfigError


def filled(folder: Path, rows: list[tuple[int, int]], expected: int, piece: int = 97) -> Tally:
    folder.mkdir()
    counting = Tally(folder, expected)
    for at in range(0, len(rows), piece):
        keys, what = zip(*rows[at : at + piece], strict=True)
        counting.add(np.array(keys, dtype=np.uint64), np.array(what, dtype=np.uint32))
    return counting


@pytest.mark.parametrize("expected", [1, 900, 5000])
def test_a_tally_counts_as_a_counter_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, expected: int) -> None:
    monkeypatch.setattr(tally, "BUFFER_ROWS", 256)
    monkeypatch.setattr(tally, "PART_ROWS", 400)
    rng = random.Random(0)
    keys = [rng.getrandbits(64) for _ in range(1500)] + [0, 2**64 - 1]
    rows = [(rng.choice(keys), rng.choice((0, 1, 2**32 - 1))) for _ in range(5000)]
    found: Counter[tuple[int, int]] = Counter()
    seen: set[int] = set()
    for pairs in filled(tmp_path / "t", rows, expected).parts():
        assert not seen & set(pairs["key"]), "all pairs of a key are in one frame"
        seen |= set(pairs["key"])
        found.update({(key, what): count for key, what, count in pairs.iter_rows()})
    assert found == Counter(rows)
    assert not list((tmp_path / "t").iterdir())
    assert list(Tally(tmp_path / "t", 0).parts()) == []


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    counting = filled(tmp_path / "t", [(5, 1)] * 10, 10)
    (tmp_path / "t").rmdir()
    with pytest.raises(ConfigError, match="temporary files cannot be written"):
        list(counting.parts())


def test_a_key_in_every_game_makes_no_file_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tally, "BUFFER_ROWS", 1000)
    monkeypatch.setattr(tally, "PART_ROWS", 1000)
    rng = random.Random(1)
    rows = [(7, 3) if at % 2 else (rng.getrandbits(64), 3) for at in range(40_000)]
    counting = filled(tmp_path / "t", rows, len(rows), piece=500)
    sizes = [path.stat().st_size // tally.PAIR.itemsize for path in (tmp_path / "t").iterdir()]
    assert len(sizes) == 64
    assert max(sizes) < 600  # 313 on average, and 40 of the common key, where 20,000 rows have it
    assert max(pairs["count"].max() for pairs in counting.parts()) == 20_000
