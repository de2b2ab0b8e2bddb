"""Very long texts: memory stays bounded, and the games around them are kept."""

import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from engine.jit_cache import NUMBA_VARIABLE, OWN_VARIABLE, key_cache_by_sources
from pipeline.dumps.chunks import Chunk
from pipeline.errors import DatasetError
from pipeline.ingest.chunk import ChunkTask, IngestConfig, encode_chunk
from pipeline.ingest.data_card import COUNTED_COLUMNS, GameCounts
from pipeline.ingest.job import ingest
from pipeline.storage.job_folder import DATASET, JobFolder
from tests.pipeline.datasets import content, games, random_game

SMALL = IngestConfig(chunk_mib=1)
GOOD = '[Event "good"]\n[Result "1-0"]\n\n1. e4 e5 2. Qh5 Nc6 3. Bc4 Nf6 4. Qxf7# 1-0\n\n'


@pytest.mark.parametrize(
    "between",
    [
        b"x" * (40 << 20),
        b'[Event "long"]\n\n1. e4 {' + b"y" * (20 << 20) + b"} e5 1-0\n\n",
        b'[Event "lines"]\n\n1. e4 {' + b"z z z z z z z\n" * (20 << 16) + b"} e5 1-0\n\n",
        b"\n" * (36 << 20),
        b"% a note\n" * (36 << 17),
    ],
    ids=["a line", "a comment", "a comment in lines", "blank lines", "escaped lines"],
)
def test_good_games_round_an_endless_one_are_kept(between: bytes, tmp_path: Path) -> None:
    dump = tmp_path / "dump.pgn"
    dump.write_bytes(GOOD.encode() + between + b"\n\n" + GOOD.encode())
    manifest = ingest([str(dump)], tmp_path / "out", SMALL, workers=1)
    found = games(tmp_path / "out")
    assert manifest["games"]["used"] == 2
    text = dump.read_bytes()
    for game in (found[0], found[-1]):
        assert game["dropped"] is None
        assert text[game["offset"] :].startswith(b'[Event "good"]')


def test_the_data_card_names_dumps_and_counts_and_escapes_markup(tmp_path: Path) -> None:
    evil = "<script>alert(1)</script> | [x](http://evil) " + "w" * 500
    tags = f'[TimeControl "{evil}"]\n[Termination "{evil}"]\n[Result'
    for name in ("a|b.pgn", "c.pgn"):
        atomic = GOOD.replace("[Result", '[Variant "Atomic"]\n[Result')
        (tmp_path / name).write_text(GOOD.replace("[Result", tags) + atomic)
    sources = [str(tmp_path / name) for name in ("a|b.pgn", "c.pgn")]
    ingest(sources, tmp_path / "out", SMALL, workers=1)
    card = (tmp_path / "out" / "CARD.md").read_text()
    assert "| variant | 2 |" in card
    assert "- a&#124;b.pgn, sha256" in card
    assert not any(text in card for text in ("<script>", "](http://evil)", "w" * 100))


def test_tags_without_end_do_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.ingest.data_card.MAX_VALUES", 4)
    counts = GameCounts()
    for number in range(50):
        tags = pa.array(["600+0", f"{number}", f"{number}x"])
        nothing = pa.nulls(3, pa.uint16())
        ratings = dict.fromkeys(("white_elo", "black_elo", "plies"), nothing)
        counts.add(
            pa.table(
                {
                    **dict.fromkeys(COUNTED_COLUMNS, tags),
                    **ratings,
                    "dropped": pa.nulls(3, pa.string()),
                }
            )
        )
    assert len(counts.values["termination"]) <= 4
    assert counts.list_frequent("termination", 1)[0]["games"] == 50


def test_shards_without_a_note_do_not_outlive_a_restart_with_other_settings(tmp_path: Path) -> None:
    dump = tmp_path / "dump.pgn"
    dump.write_text("\n".join(random_game(seed) for seed in range(20)))
    out = tmp_path / "out"
    ingest([str(dump)], tmp_path / "clean", SMALL, workers=1)
    folder = JobFolder(out, DATASET, DatasetError)
    out.mkdir()
    folder.claim({})
    folder.make_notes()
    for name in ("test-00000-0.parquet", "train-00007-3.parquet"):
        (folder.files / name).write_bytes(b"left by a killed worker")
    ingest([str(dump)], out, SMALL, workers=1)
    assert content(out) == content(tmp_path / "clean")


def test_games_beyond_what_their_column_can_number_are_refused(tmp_path: Path) -> None:
    """Rows hold their game as uint32: without a word, game 2**32 would have been game 0 again."""
    text = random_game(1).encode() + random_game(2).encode()
    starts = np.array([0, len(random_game(1).encode())], dtype=np.int64)
    folder = JobFolder(tmp_path, DATASET, DatasetError)
    folder.make_notes()
    last = (1 << 32) - 2
    encode_chunk(ChunkTask(Chunk(0, 0, last, 0, text, starts), str(tmp_path), SMALL))
    found = {
        number
        for path in folder.files.glob("*.parquet")
        for number in pq.read_table(path)["game"].to_pylist()
    }
    assert found == {last, last + 1}
    with pytest.raises(DatasetError, match=r"got game number 4,294,967,296"):
        encode_chunk(ChunkTask(Chunk(1, 0, last + 1, 0, text, starts), str(tmp_path), SMALL))
    assert not (folder.notes / "00001.json").exists()


def test_a_child_does_not_take_our_kernel_folder_for_the_users(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in (NUMBA_VARIABLE, OWN_VARIABLE):
        monkeypatch.setenv(name, "inherited")
    key_cache_by_sources()
    assert "kernels-" in os.environ[NUMBA_VARIABLE]
    monkeypatch.setenv(NUMBA_VARIABLE, "the user's own")
    key_cache_by_sources()
    assert os.environ[NUMBA_VARIABLE] == "the user's own"
