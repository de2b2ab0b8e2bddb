"""A whole ingest: counts, splits, references to games, and the same bytes for any workers."""

import io
from collections import defaultdict
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from engine.progress import Tick
from pipeline.dumps import chunks, source
from pipeline.errors import DatasetError, Stopped
from pipeline.ingest import chunk
from pipeline.ingest.chunk import IngestConfig
from pipeline.ingest.job import choose_chunk_size, ingest
from pipeline.validation.verify import compare_files
from tests.pipeline import by_python_chess, datasets

CONFIG = IngestConfig(chunk_mib=1, test_share=0.2, val_share=0.2)


@pytest.fixture(scope="module")
def dump(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a dump of three chunks: nine copies of 40 games, and nine games that are dropped."""
    path = tmp_path_factory.mktemp("dump") / "games.pgn"
    games = [datasets.random_game(seed).replace("{ ", "{ " + "word " * 20) for seed in range(40)]
    dropped = [
        '[Event "x"]\n[Result "*"]\n\n1. e4 e5 *\n\n',
        '[Event "y"]\n[Result "1-0"]\n\n1. e5 1-0\n\n',
    ]
    path.write_text("".join("".join(games[at:] + games[:at]) + dropped[at % 2] for at in range(9)))
    assert path.stat().st_size > 5 << 19
    return path


@pytest.fixture(scope="module")
def folder(dump: Path) -> Path:
    """Return the dataset of the dump, made with one worker."""
    out = dump.parent / "made"
    ingest([str(dump)], out, CONFIG, workers=1)
    return out


def test_the_counts_of_the_manifest_agree_with_python_chess_and_the_rows(
    folder: Path, dump: Path
) -> None:
    manifest, games, rows = (
        datasets.manifest(folder),
        datasets.games(folder),
        datasets.table(folder),
    )
    expected = [reading.status for reading in by_python_chess.read(dump.read_bytes())]
    assert manifest["games"]["read"] == len(games) == len(expected) == 369
    assert manifest["games"]["used"] == expected.count("used") == 360
    assert manifest["games"]["dropped"] == {"illegal move": 4, "unfinished": 5}
    assert [game["dropped"] or "used" for game in games] == expected
    assert (
        manifest["positions"]["total"]
        == len(rows)
        == sum(game["plies"] for game in games if not game["dropped"])
    )
    for split in ("train", "val", "test"):
        assert manifest["positions"][split] == rows["split"].to_pylist().count(split) > 0
    assert manifest["label_collisions"] == sum(
        promotion in (2, 3, 4) for promotion in rows["promotion"].to_pylist()
    )
    assert (
        manifest["sources"][0]["bytes"]
        == manifest["sources"][0]["text_bytes"]
        == dump.stat().st_size
    )
    assert compare_files(folder) == []


def test_all_copies_of_a_game_are_in_one_split(folder: Path) -> None:
    games, splits = datasets.games(folder), defaultdict[tuple[int, ...], set[str]](set)
    for game, rows in datasets.rows_by_game(folder).items():
        moves = tuple(row["label"] for row in rows)
        splits[moves] |= {games[game]["split"], *(row["split"] for row in rows)}
    assert len(splits) == 40
    assert all(len(names) == 1 for names in splits.values())
    assert set.union(*splits.values()) == {"train", "val", "test"}


def test_rows_refer_to_their_game_and_its_bytes_in_the_dump(folder: Path, dump: Path) -> None:
    text, games = dump.read_bytes(), datasets.games(folder)
    for number, rows in list(datasets.rows_by_game(folder).items())[::14]:
        game = games[number]
        pgn = text[game["offset"] : game["offset"] + game["length"]]
        assert pgn.startswith(b'[Event "Rated')
        (reading,) = by_python_chess.read(pgn)
        assert [row["ply"] for row in rows] == list(range(len(reading.moves)))
        assert {row["plies"] for row in rows} == {game["plies"]} == {len(reading.moves)}
        assert rows[0]["elo"] == game["white_elo"] == int(reading.headers["WhiteElo"])
        assert rows[0]["result"] == game["result"] == reading.result
    assert sum(game["length"] for game in games) == len(text)


@pytest.mark.parametrize(("workers", "block"), [(1, 10_007), (2, 65_536)])
def test_the_number_of_workers_and_the_block_size_change_no_byte(
    folder: Path,
    dump: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    workers: int,
    block: int,
) -> None:
    for module in (source, chunks):
        monkeypatch.setattr(module, "BLOCK_BYTES", block)
    ingest([str(dump)], tmp_path / "out", CONFIG, workers=workers)
    assert datasets.content(tmp_path / "out") == datasets.content(folder)


def test_rows_are_shuffled(folder: Path) -> None:
    games = pq.read_table(folder / "train-00000-0.parquet", columns=["game"])["game"].to_pylist()
    neighbors = sum(abs(game - following) <= 1 for game, following in pairwise(games))
    assert neighbors < len(games) / 20


def test_a_chunk_with_many_rows_is_written_in_several_shards(
    dump: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunk, "BLOCK_ROWS", 3000)
    chunk._get_row_buffer.cache_clear()
    ingest([str(dump)], tmp_path / "out", CONFIG, workers=1)
    chunk._get_row_buffer.cache_clear()
    assert (tmp_path / "out" / "train-00000-1.parquet").exists()
    rows = datasets.rows_by_game(tmp_path / "out")
    for number, game in enumerate(datasets.games(tmp_path / "out")):
        expected = list(range(game["plies"])) if not game["dropped"] else []
        assert [row["ply"] for row in rows.get(number, [])] == expected


def test_a_finished_dataset_of_other_settings_or_another_dump_is_refused(tmp_path: Path) -> None:
    path = datasets.dump(tmp_path / "one.pgn", 5)
    other = datasets.dump(tmp_path / "two.pgn", 5, first=9)
    ingest([str(path)], tmp_path / "out", workers=1)
    before = datasets.content(tmp_path / "out")
    with pytest.raises(DatasetError, match=r"other settings \(seed\)"):
        ingest([str(path)], tmp_path / "out", IngestConfig(seed=1), workers=1)
    with pytest.raises(DatasetError, match="are not the given dumps, or have changed"):
        ingest([str(other)], tmp_path / "out", workers=1)
    text = path.read_text()
    path.write_text(text.replace("1-0", "0-1") if "1-0" in text else text.replace("0-1", "1-0"))
    with pytest.raises(DatasetError, match="are not the given dumps, or have changed"):
        ingest([str(path)], tmp_path / "out", workers=1)
    assert datasets.content(tmp_path / "out") == before


def test_a_dump_that_changed_since_the_ingest_was_stopped_is_refused(
    dump: Path, tmp_path: Path
) -> None:
    path, data, ticks = tmp_path / "games.pgn", dump.read_bytes(), list[Tick]()
    path.write_bytes(data)
    with pytest.raises(Stopped, match="run the same command to continue"):
        ingest(
            [str(path)],
            tmp_path / "out",
            CONFIG,
            workers=1,
            progress=ticks.append,
            stop=lambda: len(ticks) > 2,
        )
    with pytest.raises(DatasetError, match="an unfinished ingest with other config"):
        ingest([str(path)], tmp_path / "out", IngestConfig(chunk_mib=2), workers=1)
    first, second, *_ = chunks.read_chunks([source.Source(str(path))], 1 << 20)
    changed_dumps = {
        "the dump has changed": data.replace(b"Rated Rapid", b"Rated Blitz", 1),
        "has become shorter": first.text + second.text,
    }
    for message, changed in changed_dumps.items():
        path.write_bytes(changed)
        with pytest.raises(DatasetError, match=message):
            ingest([str(path)], tmp_path / "out", CONFIG, workers=1)
    assert not (tmp_path / "out" / "manifest.json").exists()


def test_archives_and_standard_input_give_the_same_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = datasets.dump(tmp_path / "games.pgn", 30)
    ingest([str(path)], tmp_path / "plain", workers=1)
    plain = datasets.content(tmp_path / "plain", "*.parquet")
    assert len(plain) >= 2
    for codec, suffix in (("zstd", "zst"), ("gzip", "gz"), ("bz2", "bz2")):
        archive = tmp_path / f"games.pgn.{suffix}"
        with pa.output_stream(archive, compression=codec) as stream:
            stream.write(path.read_bytes())
        ingest([str(archive)], tmp_path / suffix, workers=1)
        assert datasets.content(tmp_path / suffix, "*.parquet") == plain
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(path.read_bytes())))
    assert ingest(["-"], tmp_path / "-", workers=1)["sources"][0]["name"] == "-"
    assert datasets.content(tmp_path / "-", "*.parquet") == plain


@pytest.mark.parametrize(
    ("name", "size", "chosen"),
    [
        ("a.pgn", 16_000 << 20, 8),
        ("a.pgn", (16_000 << 20) + 1, 16),
        ("a.pgn.zst", 3 << 30, 16),
        ("a.pgn.zst", 30 << 30, 64),
    ],
)
def test_larger_dumps_get_larger_chunks(name: str, size: int, chosen: int, tmp_path: Path) -> None:
    dump = tmp_path / name
    with dump.open("wb") as file:
        file.truncate(size)  # a sparse file
    assert choose_chunk_size(IngestConfig(), [str(dump)]).chunk_mib == chosen
    assert choose_chunk_size(IngestConfig(chunk_mib=3), [str(dump)]).chunk_mib == 3
    assert choose_chunk_size(IngestConfig(), ["-"]).chunk_mib == 8


def test_a_dataset_keeps_its_chunk_size(tmp_path: Path) -> None:
    out, path = tmp_path / "out", str(datasets.dump(tmp_path / "games.pgn", 5))
    made = ingest([path], out, IngestConfig(chunk_mib=1), workers=1)
    assert made["config"]["chunk_mib"] == 1
    assert ingest([path], out, workers=1) == made
    assert ingest([path], tmp_path / "other", workers=1)["config"]["chunk_mib"] == 8
