"""ROWS_VERSION must be raised when the rows change, and other versions are not continued."""

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from engine.progress import Tick
from pipeline.dataset.files.columns import PlaneFormat
from pipeline.errors import OtherDumpError
from pipeline.ingest import chunk, job, manifest
from pipeline.ingest.chunk import ROWS_VERSION, IngestConfig
from pipeline.ingest.job import ingest
from tests.pipeline import datasets

SMALL = IngestConfig(chunk_mib=1, test_share=0.3, val_share=0.1)
GOLDEN = {3: "aade37f3f29c2dd9f279aacd46711e468d05700200983bd17750778c561cf371"}
"""Hash of all rows and games of `dump`, by version."""

DUMP = """\
[Event "Rated Blitz game"]
[Site "https://lichess.org/abcdefgh"]
[White "a"]
[Black "b"]
[Result "1-0"]
[UTCDate "2021.10.01"]
[WhiteElo "1500"]
[BlackElo "1612"]
[TimeControl "180+2"]
[Termination "Normal"]

1. e4 { [%eval 0.25] [%clk 0:03:00] } 1... e5 { [%eval 0.3] [%clk 0:03:00] } 2. Nf3 (2. f4 exf4)
2... Nc6 $1 3. Bb5 { [%eval #5] [%clk 0:02:31] } 3... a6 4. O-O Nf6 5. Bxc6 1-0

[Event "set up"]
[Result "0-1"]
[FEN "8/P6k/8/8/8/8/p6K/8 w - - 0 40"]
[SetUp "1"]

40. a8=N a1=Q 41. Nb6 Qb2+ 0-1

[Event "illegal"]
[Result "1-0"]

1. e4 e5 2. Ke3 1-0

[Event "another variant"]
[Variant "Atomic"]
[Result "1-0"]

1. e4 1-0

[Event "en passant"]
[Result "1/2-1/2"]

1. e4 a6 2. e5 d5 3. exd6 b5 4. dxc7 Bb7 5. cxb8=R 1/2-1/2

"""


def hash_rows(folder: Path) -> str:
    """Return the hash of all rows in their order, and of all games."""
    values = [
        datasets.table(folder).to_pylist(),
        pq.read_table(folder / "games.parquet").to_pylist(),
    ]
    return hashlib.sha256(json.dumps(values, default=bytes.hex).encode()).hexdigest()


@pytest.fixture(scope="module")
def dump(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("golden") / "games.pgn"
    path.write_text(DUMP + "".join(datasets.random_game(seed) for seed in range(40)))
    return path


@pytest.mark.parametrize("planes", ["all", "compact"])
def test_the_rows_have_not_changed_since_their_version(
    dump: Path, tmp_path: Path, planes: PlaneFormat
) -> None:
    made = ingest([str(dump)], tmp_path / "out", replace(SMALL, planes=planes), workers=1)
    assert made["rows_version"] == ROWS_VERSION
    assert hash_rows(tmp_path / "out") == GOLDEN[ROWS_VERSION], (
        "the same dump gives other rows: raise ROWS_VERSION (pipeline/ingest/chunk.py), and add "
        "the new hash to GOLDEN"
    )


@pytest.mark.parametrize("is_finished", [True, False])
def test_a_dataset_of_another_version_is_refused_and_left_as_it_is(
    is_finished: bool, dump: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    if is_finished:
        made = ingest([str(dump)], out, SMALL, workers=1)
        assert ingest([str(dump)], out, SMALL, workers=1) == made
    else:
        ticks = list[Tick]()
        with pytest.raises(ValueError, match="stopped"):
            ingest(
                [str(dump)],
                out,
                SMALL,
                workers=1,
                progress=ticks.append,
                stop=lambda: bool(ticks),
            )
    before = datasets.content(out)
    for module in (chunk, job, manifest):
        monkeypatch.setattr(module, "ROWS_VERSION", ROWS_VERSION + 1)
    with pytest.raises(OtherDumpError, match=r"its rows have version|other rows_version"):
        ingest([str(dump)], out, SMALL, workers=1)
    assert datasets.content(out) == before
