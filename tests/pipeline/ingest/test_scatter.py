"""Shards of a set size hold the rows that chunks give, each drawn from the whole dump, whatever happens meanwhile."""

import random
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from numpy.typing import NDArray

from pipeline.dataset.batches import Batches
from pipeline.dataset.files.plane_kernels import PACKED
from pipeline.dataset.files.shards import read_manifest, verify
from pipeline.errors import ConfigError, DatasetError
from pipeline.ingest import scatter
from pipeline.ingest.buckets import read_index, unpacked, write_buckets
from pipeline.ingest.chunk import IngestConfig
from pipeline.ingest.job import ingest
from pipeline.storage.stores import place, read_span
from pipeline.validation.verify import verify_dataset
from tests.pipeline import datasets
from tests.pipeline.ingest.begun import FINISHED, begin

CHUNKS = IngestConfig(chunk_mib=1, test_share=0.2, val_share=0.1)
CONFIG = replace(CHUNKS, shard_rows=5000)
BY_PLY = [("game", "ascending"), ("ply", "ascending")]


@pytest.fixture(scope="module")
def dump(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a dump of four chunks, games of it unusable."""
    games = [datasets.random_game(seed) for seed in range(80)]
    bad = '[Event "x"]\n[Result "1-0"]\n\n1. e5 1-0\n\n'
    path = tmp_path_factory.mktemp("scatter") / "games.pgn"
    path.write_text("".join("".join(games[at:] + games[:at]) + bad for at in range(16)))
    return path


@pytest.fixture(scope="module")
def plain(dump: Path) -> Path:
    """Ingest it into shards as chunks give them."""
    out = dump.parent / "plain"
    ingest([str(dump)], out, CHUNKS, workers=1)
    return out


@pytest.fixture(scope="module")
def drawn(dump: Path) -> Path:
    """Ingest it into shards of a set size."""
    out = dump.parent / "drawn"
    ingest([str(dump)], out, CONFIG, workers=1)
    return out


def rows(directory: Path, split: str) -> pa.Table:
    """Read all rows of a split by game and ply."""
    names = [entry["name"] for entry in read_manifest(directory)["files"] if entry["split"] == split]
    return pa.concat_tables([pq.read_table(directory / name) for name in names]).sort_by(BY_PLY)


def games_of(path: Path) -> NDArray[np.int64]:
    """Give the game of each row in the order of the file."""
    return pq.read_table(path, columns=["game"])["game"].to_numpy().astype(np.int64)


def test_they_hold_the_rows_of_the_dump_in_files_of_one_size(plain: Path, drawn: Path) -> None:
    before, after = read_manifest(plain), read_manifest(drawn)
    assert verify(drawn) == []
    for split in ("train", "val", "test"):
        assert rows(drawn, split).equals(rows(plain, split))
        sizes = [entry["rows"] for entry in after["files"] if entry["split"] == split]
        total = before["positions"][split]
        assert len(sizes) == -(-total // CONFIG.shard_rows)
        assert sum(sizes) == total
        assert max(sizes) - min(sizes) <= 1
        names = [entry["name"] for entry in after["files"] if entry["split"] == split]
        assert names == [f"{split}-{at:05d}-of-{len(sizes):05d}.parquet" for at in range(len(sizes))]
    for same in ("games", "positions", "positions_dropped", "label_collisions", "sources"):
        assert after[same] == before[same]
    assert pq.read_table(drawn / "games.parquet").equals(pq.read_table(plain / "games.parquet"))
    assert not (drawn / ".building").exists()


def test_every_shard_is_drawn_from_the_whole_dump(plain: Path, drawn: Path) -> None:
    shards = [games_of(path) for path in sorted(drawn.glob("train-*.parquet"))]
    games = np.sort(np.concatenate(shards))
    assert len(shards) > 5
    for mine in shards:
        # Kolmogorov and Smirnov: the share of rows before each game is the whole's; 2.2 is passed once in 8,000 times.
        ours = np.searchsorted(np.sort(mine), games, "right") / len(mine)
        whole = np.searchsorted(games, games, "right") / len(games)
        assert np.abs(ours - whole).max() < 2.2 / np.sqrt(len(mine))
        # Neither do neighbours lie near each other in the dump, nor do rows lie the later the later their game.
        limit = 4.5 / np.sqrt(len(mine))
        assert abs(np.corrcoef(mine[1:], mine[:-1])[0, 1]) < limit
        assert abs(np.corrcoef(mine, np.arange(len(mine)))[0, 1]) < limit
    first = games_of(plain / "train-00000-0.parquet")  # which a chunk's own shuffle does not do
    whole = np.searchsorted(games, games, "right") / len(games)
    assert np.abs(np.searchsorted(np.sort(first), games, "right") / len(first) - whole).max() > 0.5


def test_the_bytes_depend_on_the_seed_and_not_on_the_workers(dump: Path, drawn: Path, tmp_path: Path) -> None:
    ingest([str(dump)], tmp_path / "two", CONFIG, workers=2)
    assert datasets.content(tmp_path / "two") == datasets.content(drawn)
    ingest([str(dump)], tmp_path / "seed", replace(CONFIG, seed=1), workers=1)
    assert rows(tmp_path / "seed", "train").equals(rows(drawn, "train"))
    for path in drawn.glob("train-*.parquet"):
        assert (games_of(path) != games_of(tmp_path / "seed" / path.name)[: len(games_of(path))]).mean() > 0.9


def test_one_shard_may_hold_all_and_a_split_may_be_empty(dump: Path, plain: Path, tmp_path: Path) -> None:
    config = replace(CONFIG, shard_rows=1 << 23, val_share=0.0)
    manifest = ingest([str(dump)], tmp_path / "out", config, workers=1)
    assert [entry["name"] for entry in manifest["files"]] == [
        "train-00000-of-00001.parquet",
        "test-00000-of-00001.parquet",
        "games.parquet",
    ]
    assert rows(tmp_path / "out", "test").equals(rows(plain, "test"))


def test_filters_that_leave_little_leave_that(dump: Path, tmp_path: Path) -> None:
    few = {"skip_plies": 50, "positions_per_game": 1}
    ingest([str(dump)], tmp_path / "plain", replace(CHUNKS, **few), workers=1)  # type: ignore[arg-type]
    ingest([str(dump)], tmp_path / "drawn", replace(CONFIG, **few), workers=1)  # type: ignore[arg-type]
    for split in ("train", "val", "test"):
        assert len(rows(tmp_path / "drawn", split)) > 0
        assert rows(tmp_path / "drawn", split).equals(rows(tmp_path / "plain", split))


def test_batches_are_made_of_them(plain: Path, drawn: Path) -> None:
    for split in ("train", "test"):
        stream = Batches([drawn], split, batch_size=100).from_step(0)
        total = read_manifest(drawn)["positions"][split]
        epoch = [next(stream) for _ in range(total // 100)]
        keys = np.concatenate([batch["game"].astype(np.int64) << 16 | batch["ply"] for batch in epoch])
        assert len(np.unique(keys)) == len(keys)  # no row twice
        stored = rows(plain, split)
        wanted = stored["game"].to_numpy().astype(np.int64) << 16 | stored["ply"].to_numpy()
        assert np.isin(keys, wanted).all()


def stopped_between(dump: Path, out: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Stop an ingest when it has made one shard; give its name."""
    monkeypatch.setattr(scatter, "ROWS_AT_ONCE", 1)
    made: list[str] = []

    def stop() -> bool:
        made[:] = sorted(path.name for path in (out / ".building").glob("*-of-*.parquet"))
        return bool(made)

    with pytest.raises(ValueError, match="run the same command to continue"):
        ingest([str(dump)], out, CONFIG, workers=1, stop=stop)
    return made


def test_what_was_stopped_is_continued_where_it_was(
    dump: Path, drawn: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (first,) = stopped_between(dump, tmp_path / "out", monkeypatch)
    assert first.startswith("train-00000-of-")
    before = (tmp_path / "out" / ".building" / first).stat()
    second = first.replace("train-00000", "train-00001")
    (tmp_path / "out" / ".building" / second).write_bytes(b"of a worker that was killed")
    ingest([str(dump)], tmp_path / "out", CONFIG, workers=1)
    assert datasets.content(tmp_path / "out") == datasets.content(drawn)
    after = (tmp_path / "out" / first).stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_what_killed_it_changes_nothing(dump: Path, drawn: Path, tmp_path: Path) -> None:
    expected, out, kill_at, kills = datasets.content(drawn), tmp_path / "out", 2, 0
    while (ended := begin(dump, out, CONFIG, kill_at=kill_at).wait()) == -signal.SIGKILL:
        kills, kill_at = kills + 1, kill_at + 15
        finished = {name for name in datasets.content(out) if name.endswith(".parquet") and "/" not in name}
        assert {name: datasets.content(out)[name] for name in finished}.items() <= expected.items()
    assert ended == FINISHED
    assert kills > 4
    assert datasets.content(out) == expected


@pytest.mark.parametrize("where", ["frame", "count", "length", "end", "gone"])
def test_rows_that_rotted_meanwhile_are_noticed(
    dump: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    stopped_between(dump, tmp_path / "out", monkeypatch)
    path = sorted((tmp_path / "out" / ".building" / "parts").glob("train-*.rows"))[-1]
    data = bytearray(path.read_bytes())
    buckets = 45  # 64 a MiB, seven tenths of them of train
    data[{"frame": len(data) // 2, "count": -4, "length": -8 * buckets}.get(where, 0)] ^= 1
    path.write_bytes(data if where != "end" else data[:-5])
    if where == "gone":
        path.unlink()
    with pytest.raises(DatasetError, match=r"(is damaged|No such file).*delete .* and ingest again"):
        ingest([str(dump)], tmp_path / "out", CONFIG, workers=1)
    assert not (tmp_path / "out" / "manifest.json").exists()


def test_a_dump_that_has_grown_since_gives_all_of_its_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scatter, "ROWS_AT_ONCE", 1)
    config, out = replace(CONFIG, shard_rows=1024), tmp_path / "out"
    names = [str(datasets.dump(tmp_path / "a.pgn", 40)), str(tmp_path / "b.pgn.zst")]
    whole = zstandard.compress("".join(map(datasets.random_game, range(40, 80))).encode())
    Path(names[1]).write_bytes(whole)
    ingest(names, tmp_path / "expected", config, workers=1)
    Path(names[1]).write_bytes(whole[:40])  # which is no game yet
    with pytest.raises(ValueError, match="run the same command"):
        ingest(names, out, config, workers=1, stop=lambda: any((out / ".building").glob("*-of-*")))
    before = {path.name for path in (out / ".building").glob("*-of-*")}
    assert before
    Path(names[1]).write_bytes(whole)
    ingest(names, out, config, workers=1)
    assert datasets.content(out) == datasets.content(tmp_path / "expected")
    assert not before & {path.name for path in out.iterdir()}, "what was made of fewer rows is gone"


def test_they_are_verified_as_others_are(dump: Path, drawn: Path, tmp_path: Path) -> None:
    def look(directory: Path, **options: Any) -> dict[str, Any]:
        found = verify_dataset(directory, [str(dump)], workers=1, **options)
        found["problems"] = [line for name in ("files", "splits", "source", "rows") for line in found[name]]
        return found

    total = read_manifest(drawn)["positions"]["total"]
    found = look(drawn, everything=True)
    assert (found["problems"], found["encoded_again"], found["compared"]) == ([], total, 64)
    found = look(drawn)
    assert found["problems"] == []
    assert look(drawn, limit=1 << 20)["compared"] == 64  # of the first chunk's games

    from tests.pipeline.validation.test_verify import altered, rewrite

    copy = tmp_path / "positions" / "games"
    copy.mkdir(parents=True)
    for path in drawn.iterdir():
        (copy / path.name).write_bytes(path.read_bytes())
    name = sorted(path.name for path in copy.glob("test-*"))[0]
    rewrite(tmp_path, name, altered("label", 17, 4000))
    (line,) = look(copy, everything=True, rows=0)["rows"]
    row = pq.read_table(copy / name).slice(17, 1).to_pylist()[0]
    assert line.startswith(f"game {row['game']}, ply {row['ply']}: label is 4000, not ")
    rewrite(tmp_path, name, lambda table: table.slice(3))
    lines = look(copy, everything=True, rows=0)["rows"]
    assert len([line for line in lines if line.endswith("is not stored")]) == 3


def test_a_store_holds_what_a_folder_would(dump: Path, drawn: Path) -> None:
    out: Any = place(f"memory://bucket/{random.randrange(1 << 40)}/drawn")
    ingest([str(dump)], out, CONFIG, workers=1)
    made = {name.rpartition("/")[2]: out.fs.cat_file(name) for name in out.fs.find(out.path)}
    hashes = {name: datasets.hashlib.sha256(data).hexdigest() for name, data in made.items()}
    assert hashes == datasets.content(drawn)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"shard_rows": 1000}, "shard_rows is from 1,024 to 8,388,608, or 0, not 1000"),
        ({"shard_rows": -1}, "shard_rows is from"),
        ({"shard_rows": 5000, "order": "game"}, "choose one"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        IngestConfig(**settings)


def test_another_size_is_another_dataset(dump: Path, drawn: Path) -> None:
    with pytest.raises(DatasetError, match=r"other settings \(shard_rows\)"):
        ingest([str(dump)], drawn, replace(CONFIG, shard_rows=6000), workers=1)


@pytest.fixture
def one_file(tmp_path: Path) -> tuple[Path, dict[str, Any], NDArray[np.uint64]]:
    """Write twelve rows in three buckets, the second empty."""
    from pipeline.ingest.buckets import record_type

    chance = np.random.default_rng(0)
    columns = {
        name: chance.integers(0, 100, 12).astype(kind) for name, (kind, _) in (record_type(3).fields or {}).items()
    }
    planes = chance.integers(0, 1 << 63, (12, PACKED), dtype=np.uint64)
    with (tmp_path / "x.rows").open("wb") as target:
        write_buckets(columns, planes, np.array([5, 0, 7]), 3, target)
    return tmp_path / "x.rows", columns, planes


def test_a_file_gives_its_buckets_back(one_file: tuple[Path, dict[str, Any], NDArray[np.uint64]]) -> None:
    path, columns, planes = one_file
    lengths, counts = read_index(path, 3)
    assert counts.tolist() == [5, 0, 7]
    assert lengths[1] == 0
    records, found = unpacked(read_span(path, int(lengths[0]), int(lengths[:3].sum())), 7, 3)
    assert (found == planes[5:]).all()
    assert all((records[name] == columns[name][5:]).all() for name in columns)
    with pytest.raises(ValueError, match="is damaged"):
        read_index(path, 4)


def test_small_shards_are_made_together_and_their_bytes_are_the_same(
    dump: Path, drawn: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scatter, "ROWS_AT_ONCE", 1)
    ingest([str(dump)], tmp_path / "alone", CONFIG, workers=1)
    assert datasets.content(tmp_path / "alone") == datasets.content(drawn)
    monkeypatch.setattr(scatter, "ROWS_AT_ONCE", 15_000)
    ingest([str(dump)], tmp_path / "by-three", CONFIG, workers=1)
    assert datasets.content(tmp_path / "by-three") == datasets.content(drawn)
