"""Text that is far too long somewhere: memory stays bounded and the good games round it are
kept."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from engine.jit_cache import OURS, VARIABLE, key_cache_by_sources
from pipeline.dataset.batches import Batches
from pipeline.dataset.files.columns import CARD, GAMES
from pipeline.dumps.chunks import Chunk
from pipeline.errors import DatasetError
from pipeline.ingest.chunk import ChunkTask, IngestConfig, encode_chunk
from pipeline.ingest.data_card import COUNTED, GameCounts, data_card
from pipeline.ingest.job import ingest
from pipeline.storage.job_folder import DATASET, JobFolder
from tests.pipeline.datasets import content, games, random_game, rows_by_game
from tests.pipeline.hostile import seal

SMALL = IngestConfig(chunk_mib=1)
GOOD = '[Event "good"]\n[Result "1-0"]\n\n1. e4 e5 2. Qh5 Nc6 3. Bc4 Nf6 4. Qxf7# 1-0\n\n'


def statuses(directory: Path) -> list[str | None]:
    """Give what became of each game, None for a used one."""
    return [game["dropped"] for game in games(directory)]


@pytest.mark.parametrize(
    "between",
    [
        b"x" * (40 << 20),
        b'[Event "long"]\n\n1. e4 {' + b"y" * (20 << 20) + b"} e5 1-0\n\n",
        b'[Event "lines"]\n\n1. e4 {' + b"z z z z z z z\n" * (2 << 20) + b"} e5 1-0\n\n",
        b"\n" * (50 << 20),
        b"% a note\n" * (5 << 20),
    ],
    ids=[
        "one line of 40 MiB",
        "a comment of 20 MiB",
        "a comment of 28 MiB in lines",
        "blank lines",
        "escaped lines",
    ],
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


def test_a_clock_of_many_digits_is_only_a_long_time(tmp_path: Path) -> None:
    dump = tmp_path / "dump.pgn"
    clock = "{ [%clk " + "9" * 60 + ":1:1] }"
    dump.write_text(
        f'[Result "1-0"]\n\n1. e4 {clock} e5 2. Qh5 {clock} Nc6 3. Bc4 Nf6 4. Qxf7# 1-0\n'
    )
    ingest([str(dump)], tmp_path / "out", SMALL, workers=1)
    assert rows_by_game(tmp_path / "out")[0][2]["clock"] == 65534


def test_tags_cannot_write_markup_into_the_data_card(tmp_path: Path) -> None:
    dump = tmp_path / "dump.pgn"
    evil = "<script>alert(1)</script> | [x](http://evil) " + "w" * 500
    dump.write_text(
        GOOD.replace("[Result", f'[TimeControl "{evil}"]\n[Termination "{evil}"]\n[Result')
    )
    ingest([str(dump)], tmp_path / "out", SMALL, workers=1)
    card = (tmp_path / "out" / "CARD.md").read_text()
    assert "<script>" not in card
    assert "](http://evil)" not in card
    assert "w" * 100 not in card


def test_the_data_card_names_dumps_and_counts_dropped_games(tmp_path: Path) -> None:
    for name in ("a|b.pgn", "c.pgn"):
        (tmp_path / name).write_text(
            GOOD + "\n" + GOOD.replace("[Result", '[Variant "Atomic"]\n[Result')
        )
    ingest(
        [str(tmp_path / name) for name in ("a|b.pgn", "c.pgn")], tmp_path / "out", SMALL, workers=1
    )
    card = (tmp_path / "out" / "CARD.md").read_text()
    assert "| variant | 2 |" in card
    assert "- a&#124;b.pgn, sha256" in card


def test_the_data_card_of_many_chunks_is_that_of_one(tmp_path: Path) -> None:
    played = [random_game(seed) for seed in range(20)]
    (tmp_path / "dump.pgn").write_text("\n".join(played))
    manifest = ingest([str(tmp_path / "dump.pgn")], tmp_path / "out", SMALL, workers=1)
    table = pq.read_table(tmp_path / "out" / GAMES)
    counts = GameCounts()
    for first in range(0, len(table), 3):
        counts.add(table.slice(first, 3))
    assert data_card(manifest, counts) == (tmp_path / "out" / CARD).read_text()


def test_tags_without_end_do_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.ingest.data_card.MOST_VALUES", 4)
    counts = GameCounts()
    for number in range(50):
        tags = pa.array(["600+0", f"{number}", f"{number}x"])
        nothing = pa.nulls(3, pa.uint16())
        ratings = dict.fromkeys(("white_elo", "black_elo", "plies"), nothing)
        counts.add(
            pa.table(
                {**dict.fromkeys(COUNTED, tags), **ratings, "dropped": pa.nulls(3, pa.string())}
            )
        )
    assert len(counts.values["termination"]) <= 4
    assert counts.shares("termination", 1)[0]["games"] == 50


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


def test_a_shard_of_another_encoding_is_refused_before_it_is_read(tmp_path: Path) -> None:
    dump = tmp_path / "dump.pgn"
    dump.write_text("\n".join(random_game(seed) for seed in range(20)))
    ingest([str(dump)], tmp_path / "out", SMALL, workers=1)
    shard = next((tmp_path / "out").glob("train-*.parquet"))
    table = pq.read_table(shard)
    pq.write_table(table.replace_schema_metadata({"moves_hash": "0123456789abcdef"}), shard)
    seal(tmp_path / "out")
    with pytest.raises(DatasetError, match="0123456789abcdef"):
        next(Batches([tmp_path / "out"], batch_size=1).from_step(0))


def test_a_child_does_not_take_our_kernel_folder_for_the_users(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(VARIABLE, "inherited")
    monkeypatch.setenv(OURS, "inherited")
    key_cache_by_sources()
    import os

    assert "kernels-" in os.environ[VARIABLE]
    monkeypatch.setenv(VARIABLE, "the user's own")
    key_cache_by_sources()
    assert os.environ[VARIABLE] == "the user's own"


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
    with pytest.raises(
        DatasetError,
        match=r"game number 4,294,967,296 is beyond the 4,294,967,296 games of a dataset",
    ):
        encode_chunk(ChunkTask(Chunk(1, 0, last + 1, 0, text, starts), str(tmp_path), SMALL))
    assert not (folder.notes / "00001.json").exists()
