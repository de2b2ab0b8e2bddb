"""Files whose footers promise more than a dataset holds are refused before memory is allocated for
them."""

import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.dataset.batches import Batches
from pipeline.dataset.fen_rows import fen_rows
from pipeline.dataset.files.shard_files import games_tables
from pipeline.dataset.files.shards import read_manifest
from pipeline.errors import DatasetError
from pipeline.validation.audit import audit
from pipeline.validation.verify import verify_dataset
from tests.pipeline.hostile import column, seal, stored
from tests.pipeline.months import month


@pytest.fixture
def made(tmp_path: Path) -> Path:
    return month(tmp_path, "2014.05", list(range(12)))


def test_a_row_with_more_visits_than_a_position_has_moves_is_refused(made: Path) -> None:
    visits = [{"label": 0, "share": 0.0}] * 300_000
    stored("train-00000-0.parquet", column("visits", visits))(made)
    with pytest.raises(DatasetError, match=r"train-00000-0\.parquet: visits.* too many for"):
        next(Batches([made], columns=("visits",), batch_size=4).from_step(0))


def test_a_text_that_is_repeated_in_every_game_is_not_unpacked(made: Path) -> None:
    games = made / "games.parquet"
    table = pq.read_table(games)
    count = 4096
    texts = pa.DictionaryArray.from_arrays(
        pa.array([0] * count, pa.int32()), pa.array(["x" * (1 << 20)])
    )
    wide = pa.concat_tables([table] * (count // len(table) + 1)).slice(0, count)
    at = wide.schema.get_field_index("date")
    pq.write_table(
        wide.set_column(at, pa.field("date", texts.type), texts),
        games,
        compression="zstd",
        store_schema=False,
    )
    manifest = read_manifest(made)
    manifest["games"]["read"] = count
    seal(made)
    assert games.stat().st_size < 200_000
    before = pa.total_allocated_bytes()
    with pytest.raises(
        DatasetError, match=r"games\.parquet .*date holds 4,294,967,296 bytes of text"
    ):
        next(games_tables(made, manifest, ["date"]))
    assert pa.total_allocated_bytes() - before < 64 << 20


@pytest.mark.parametrize("name", ["run:1", os.fsdecode(b"caf\xe9")])
def test_a_dataset_is_read_whatever_its_folder_is_called(
    made: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made.rename(made.parent / name)
    monkeypatch.chdir(made.parent)
    folder = Path(name)
    total = read_manifest(folder)["positions"]["total"]
    assert sum(len(table) for table in fen_rows(folder)) == total
    assert len(next(Batches([folder], batch_size=8).from_step(0))["label"]) == 8
    assert audit([folder])["copies"]["positions"] == total
    found = verify_dataset(folder)
    assert not found["files"] + found["splits"]
