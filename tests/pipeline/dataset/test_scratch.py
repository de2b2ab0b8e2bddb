"""Rows in temporary files come back in parts, all rows of a key in one."""

import random
from collections import Counter
from pathlib import Path

import polars as pl
import pytest

from pipeline.dataset import scratch
from pipeline.dataset.scratch import Scratch
from pipeline.errors import ConfigError

SCHEMA = {"key": pl.UInt64, "what": pl.UInt8}


@pytest.mark.parametrize("expected", [0, 900])
def test_every_row_comes_back_with_the_others_of_its_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, expected: int
) -> None:
    monkeypatch.setattr(scratch, "PART_ROWS", 400)
    rng = random.Random(0)
    keys = [rng.getrandbits(64) for _ in range(1500)] + [0, 2**64 - 1]
    rows = [(rng.choice(keys), rng.choice((0, 1, 255))) for _ in range(5000)]
    kept = Scratch(tmp_path, expected)
    assert list(kept.parts()) == []
    for at in range(0, len(rows), 97):
        kept.add(pl.DataFrame(rows[at : at + 97], schema=SCHEMA, orient="row"))
    parts = [part.collect() for part in kept.parts()]
    assert len(parts) == max(1, -(-expected // 400))
    assert Counter(row for part in parts for row in part.iter_rows()) == Counter(rows)
    assert sum(part["key"].n_unique() for part in parts) == len({key for key, _ in rows})


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="temporary files cannot be written"):
        Scratch(tmp_path / "nowhere", 1).add(pl.DataFrame({"key": [1]}))
