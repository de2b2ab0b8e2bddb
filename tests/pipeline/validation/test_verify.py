"""`verify` finds every kind of damage, names it, and finds none where there is none."""

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.cli.commands.audit import Verify
from pipeline.cli.main import main
from pipeline.dataset.files.manifest import read_manifest
from pipeline.dataset.files.shards import write_rows
from pipeline.dataset.join import join
from pipeline.dumps.source import find_dumps
from pipeline.errors import DatasetError, DifferenceError
from pipeline.ingest.chunk import IngestConfig
from pipeline.ingest.job import ingest
from pipeline.storage.stores import file_hash
from pipeline.validation.verify import list_joined_datasets, verify_dataset
from tests.pipeline import hostile
from tests.pipeline.datasets import dump, games, random_game

CONFIG = IngestConfig(chunk_mib=1, test_share=0.2, val_share=0.2)


def write_dataset(folder: Path, games: int, copies: int) -> None:
    """Write `dumps/games.pgn`, the games and a bad one in `copies` orders, and its dataset."""
    (folder / "dumps").mkdir()
    text = [random_game(seed, 30) for seed in range(games)]
    bad = '[Event "x"]\n[Result "1-0"]\n\n1. e5 1-0\n\n'
    path = folder / "dumps" / "games.pgn"
    path.write_text("".join("".join(text[at:] + text[:at]) + bad for at in range(copies)))
    ingest([str(path)], folder / "positions" / "games", CONFIG, workers=1)


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a dump of three chunks and its dataset."""
    folder = tmp_path_factory.mktemp("verified")
    write_dataset(folder, games=60, copies=30)
    return folder


@pytest.fixture
def copied(original: Path, tmp_path: Path) -> Path:
    return shutil.copytree(original, tmp_path / "copy")


def look(folder: Path, **options: Any) -> dict[str, Any]:
    return verify_dataset(
        folder / "positions" / "games", [str(folder / "dumps" / "games.pgn")], **options
    )


def problems(found: dict[str, Any]) -> list[str]:
    return [line for name in ("files", "splits", "source", "rows") for line in found[name]]


def rewrite(folder: Path, name: str, change: Callable[[pa.Table], pa.Table]) -> None:
    """Change a shard of a dataset, and its hash in the manifest with it."""
    directory = folder / "positions" / "games"
    path = directory / name
    write_rows(change(pq.read_table(path)), path)
    manifest = read_manifest(directory)
    (entry,) = (entry for entry in manifest["files"] if entry["name"] == name)
    entry |= {"bytes": path.stat().st_size, "sha256": file_hash(path)}
    (directory / "manifest.json").write_text(json.dumps(manifest))


def test_an_undisturbed_dataset_is_as_it_should_be(original: Path) -> None:
    found = look(original, rows=10)
    assert problems(found) == []
    assert found["compared"] == 10


def test_a_flipped_bit_a_lost_and_a_strange_file_are_named(copied: Path) -> None:
    directory = copied / "positions" / "games"
    data = bytearray((directory / "train-00001-0.parquet").read_bytes())
    data[len(data) // 2] ^= 1
    (directory / "train-00001-0.parquet").write_bytes(data)
    (directory / "test-00000-0.parquet").unlink()
    shutil.copy(directory / "val-00000-0.parquet", directory / "val-00099-0.parquet")
    assert sorted(look(copied)["files"]) == [
        "test-00000-0.parquet: missing",
        "train-00001-0.parquet: does not match its hash",
        "val-00099-0.parquet: not in the manifest",
    ]


def test_a_manifest_that_names_another_form_of_planes_is_found(copied: Path) -> None:
    """Training believes the manifest: it would refuse such a shard."""
    directory = copied / "positions" / "games"
    manifest = json.loads((directory / "manifest.json").read_text())
    (directory / "manifest.json").write_text(json.dumps(manifest | {"planes": "compact"}))
    shards = [entry["name"] for entry in manifest["files"] if entry["split"] is not None]
    assert look(copied)["files"] == [
        f"{name}: has planes all, but the manifest says compact" for name in shards
    ]


def test_altered_rows_under_rewritten_hashes_are_found(tmp_path: Path) -> None:
    """One row of each shard, among all of a small dataset."""
    write_dataset(tmp_path, games=15, copies=1)
    files = read_manifest(tmp_path / "positions" / "games")["files"]
    shards = [entry["name"] for entry in files if entry["split"]]
    for name in shards:
        rewrite(tmp_path, name, lambda table: hostile.column("halfmove", 77, 0)(flip_a_bit(table)))
    found = look(tmp_path, rows=10**6)["rows"]
    assert len(found) == len(shards) == 3, "no row is compared twice"
    assert all("halfmove is 77, not " in line and "planes [0] differ" in line for line in found)


def test_rows_of_every_dump_are_replayed(tmp_path: Path) -> None:
    dumps = [dump(tmp_path / f"{name}.pgn", 4, 20, first) for name, first in (("a", 0), ("b", 9))]
    made, sources = tmp_path / "made", list(map(str, dumps))
    total = ingest(sources, made, CONFIG, workers=1)["positions"]["total"]
    found = verify_dataset(made, sources, rows=10**6)
    assert (problems(found), found["compared"]) == ([], total)
    of_first = sum(game["plies"] for game in games(made) if game["source"] == 0)
    some = verify_dataset(made, sources, rows=10**6, limit=dumps[0].stat().st_size)
    assert (problems(some), some["compared"]) == ([], of_first)
    assert verify_dataset(made, [sources[0]] * 2, rows=10**6)["rows"], "rows of b are not in a"


def flip_a_bit(table: pa.Table) -> pa.Table:
    return hostile.column("own_pawns", table["own_pawns"][0].as_py() ^ 1, 0)(table)


def test_a_training_set_is_verified_with_its_datasets(copied: Path) -> None:
    directory = copied / "positions" / "games"
    join([directory], copied / "set")
    assert list_joined_datasets(copied / "set") == ([directory.resolve()], [])
    rewrite(copied, "test-00000-0.parquet", hostile.column("label", 4000, 0))
    assert list_joined_datasets(copied / "set")[1] == [
        "games: its manifest has changed since it was joined"
    ]
    directory.rename(copied / "elsewhere")
    assert list_joined_datasets(copied / "set") == ([], ["games: is missing"])


def test_a_shorter_dump_is_noticed(copied: Path) -> None:
    dump = copied / "dumps" / "games.pgn"
    text = dump.read_text()
    dump.write_text(text[: text.index("[Event ", len(text) // 2)])
    found = look(copied, rows=60)
    assert found["source"][0].endswith("or has changed")
    assert any("is not in the dump" in line for line in found["rows"])


def test_a_manifest_without_a_size_of_chunks_is_refused(copied: Path) -> None:
    path = copied / "positions" / "games" / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["config"]["chunk_mib"] = "1"
    path.write_text(json.dumps(manifest))
    with pytest.raises(DatasetError, match=r"manifest\.json: config\.chunk_mib"):
        look(copied)


def test_the_command_says_what_differs_and_what_it_did_not_check(
    copied: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = copied / "positions" / "games"

    def call(*words: str) -> tuple[int, dict[str, Any]]:
        monkeypatch.setattr(sys, "argv", ["fianchetto", "verify", str(directory), *words, "--json"])
        with pytest.raises(SystemExit) as ended:
            main()
        out = capsys.readouterr().out
        return int(ended.value.code or 0), json.loads(out.splitlines()[-1]) if out else {}

    assert call("--source", str(copied / "nosuch.pgn"))[0] == 2
    assert call("--sample", "-1")[0] == 2
    code, found = call("--sample", "4")  # the dump lies where Dagster has it
    assert code == 0
    games = found["datasets"]["games"]
    assert (games["replayed_with_python_chess"], games["not_checked"]) == (4, [])
    (copied / "dumps" / "games.pgn").unlink()
    code, found = call("--sample", "0")
    assert (code, found["datasets"]["games"]["not_checked"]) == (0, ["source", "rows"])
    (directory / "test-00000-0.parquet").unlink()
    code, found = call()
    assert (code, found["problems"]) == (1, ["games: test-00000-0.parquet: missing"])
    with pytest.raises(DifferenceError, match=r"^1 difference in "):
        Verify(datasets=(directory,)).run()
    assert found["datasets"]["games"]["not_checked"] == ["splits", "source", "rows"]


def test_datasets_of_the_same_name_and_one_below_the_root_are_verified(
    original: Path, tmp_path: Path
) -> None:
    for folder in ("a", "b"):
        shutil.copytree(original / "positions" / "games", tmp_path / folder / "same")
    command = Verify(datasets=(tmp_path / "a" / "same", tmp_path / "b" / "same"), sample=0)
    assert len(command.run()["datasets"]) == 2
    assert find_dumps(Path("/positions"), {"sources": [{"name": "not-there.pgn"}]}) is None
