"""Very long texts and hostile tags: memory stays bounded, and the games around them are kept."""

import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from engine.jit_cache import NUMBA_CACHE_VARIABLE, OWN_CACHE_VARIABLE, key_cache_by_sources
from pipeline.dumps.chunks import Chunk
from pipeline.errors import DatasetError
from pipeline.ingest.chunk import ChunkTask, IngestConfig, encode_chunk
from pipeline.ingest.data_card import COUNTED_COLUMNS, GameCounts
from pipeline.ingest.job import ingest
from pipeline.storage.job_folder import DATASET_KIND, JobFolder
from tests.pipeline.datasets import content, games, random_game

SMALL = IngestConfig(chunk_mib=1)
GOOD = '[Event "good"]\n[Result "1-0"]\n\n1. e4 e5 2. Qh5 Nc6 3. Bc4 Nf6 4. Qxf7# 1-0\n\n'


@pytest.mark.parametrize(
    "filler",
    [
        b"x" * (40 << 20),
        b'[Event "long"]\n\n1. e4 {' + b"y" * (20 << 20) + b"} e5 1-0\n\n",
        b'[Event "lines"]\n\n1. e4 {' + b"z z z z z z z\n" * (20 << 16) + b"} e5 1-0\n\n",
        b"\n" * (36 << 20),
        b"% a note\n" * (36 << 17),
    ],
    ids=["a line", "a comment", "a comment in lines", "blank lines", "escaped lines"],
)
def test_games_before_and_after_a_very_long_text_are_kept(filler: bytes, tmp_path: Path) -> None:
    dump = tmp_path / "dump.pgn"
    dump.write_bytes(GOOD.encode() + filler + b"\n\n" + GOOD.encode())
    manifest = ingest([str(dump)], tmp_path / "out", SMALL, workers=1)
    found = games(tmp_path / "out")
    assert manifest["games"]["used"] == 2
    text = dump.read_bytes()
    for game in (found[0], found[-1]):
        assert game["dropped"] is None
        assert text[game["offset"] :].startswith(b'[Event "good"]')


def test_the_data_card_escapes_markup_of_dumps(tmp_path: Path) -> None:
    markup = "<script>alert(1)</script> | [x](http://evil) " + "w" * 500
    tags = f'[TimeControl "{markup}"]\n[Termination "{markup}"]\n[Result'
    for name in ("a|b.pgn", "c.pgn"):
        atomic = GOOD.replace("[Result", '[Variant "Atomic"]\n[Result')
        (tmp_path / name).write_text(GOOD.replace("[Result", tags) + atomic)
    sources = [str(tmp_path / name) for name in ("a|b.pgn", "c.pgn")]
    ingest(sources, tmp_path / "out", SMALL, workers=1)
    card = (tmp_path / "out" / "CARD.md").read_text()
    assert "| variant | 2 |" in card
    assert "- a&#124;b.pgn, sha256" in card
    assert not any(text in card for text in ("<script>", "](http://evil)", "w" * 100))


def test_the_number_of_distinct_values_that_are_counted_is_limited(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("pipeline.ingest.data_card.MAX_COUNTED_VALUES", 4)
    counts = GameCounts()
    for number in range(50):
        tags = pa.array(["600+0", f"{number}", f"{number}x"])
        columns = dict.fromkeys(("white_elo", "black_elo", "plies"), pa.nulls(3, pa.uint16()))
        columns |= dict.fromkeys(COUNTED_COLUMNS, tags)
        counts.add(pa.table(columns | {"dropped": pa.nulls(3, pa.string())}))
    assert len(counts.values["termination"]) <= 4
    assert counts.list_frequent("termination", 1)[0]["games"] == 50


def test_shards_without_a_note_are_deleted_by_the_next_ingest(tmp_path: Path) -> None:
    dump = tmp_path / "dump.pgn"
    dump.write_text("\n".join(random_game(seed) for seed in range(20)))
    out = tmp_path / "out"
    ingest([str(dump)], tmp_path / "clean", SMALL, workers=1)
    folder = JobFolder(out, DATASET_KIND, DatasetError)
    out.mkdir()
    folder.claim({})
    folder.make_notes_folder()
    for name in ("test-00000-0.parquet", "train-00007-3.parquet"):
        (folder.files / name).write_bytes(b"left by a killed worker")
    ingest([str(dump)], out, SMALL, workers=1)
    assert content(out) == content(tmp_path / "clean")


def test_more_games_than_a_row_can_number_are_refused(tmp_path: Path) -> None:
    """Rows store the number of their game as uint32, which would wrap around at 2**32."""
    text = random_game(1).encode() + random_game(2).encode()
    starts = np.array([0, len(random_game(1).encode())], dtype=np.int64)
    folder = JobFolder(tmp_path, DATASET_KIND, DatasetError)
    folder.make_notes_folder()
    last = (1 << 32) - 2
    encode_chunk(ChunkTask(Chunk(0, 0, last, 0, text, starts), str(tmp_path), SMALL))
    tables = [pq.read_table(path) for path in folder.files.glob("*.parquet")]
    assert set(pa.concat_tables(tables)["game"].to_pylist()) == {last, last + 1}
    with pytest.raises(DatasetError, match=r"got game number 4,294,967,296"):
        encode_chunk(ChunkTask(Chunk(1, 0, last + 1, 0, text, starts), str(tmp_path), SMALL))
    assert not (folder.notes / "00001.json").exists()


def test_an_inherited_kernel_folder_is_not_taken_for_the_users_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in (NUMBA_CACHE_VARIABLE, OWN_CACHE_VARIABLE):
        monkeypatch.setenv(name, "inherited")
    key_cache_by_sources()
    assert "kernels-" in os.environ[NUMBA_CACHE_VARIABLE]
    monkeypatch.setenv(NUMBA_CACHE_VARIABLE, "the user's own")
    key_cache_by_sources()
    assert os.environ[NUMBA_CACHE_VARIABLE] == "the user's own"
