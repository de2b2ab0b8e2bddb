"""`verify` names every kind of damage, and finds none in an undamaged dataset."""

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
from pipeline.dataset.dataset import open_unverified
from pipeline.dataset.files.manifest import read_manifest
from pipeline.dataset.files.shards import write_rows
from pipeline.dataset.join import join
from pipeline.dumps.source import find_dumps
from pipeline.errors import DatasetError, DifferenceError
from pipeline.ingest.chunk import IngestConfig
from pipeline.ingest.job import ingest
from pipeline.validation.verify import compare_rows, list_joined_datasets, verify_dataset
from tests.pipeline.datasets import dump, games, random_game
from tests.pipeline.hostile import edit_json, set_cell, update_hashes

CONFIG = IngestConfig(chunk_mib=1, test_share=0.2, val_share=0.2)


def write_dataset(folder: Path, games: int, copies: int) -> Path:
    """Write `dumps/games.pgn`, the games and a bad one in `copies` orders, and its dataset."""
    (folder / "dumps").mkdir()
    text = [random_game(seed, 30) for seed in range(games)]
    bad = '[Event "x"]\n[Result "1-0"]\n\n1. e5 1-0\n\n'
    path = folder / "dumps" / "games.pgn"
    path.write_text("".join("".join(text[at:] + text[:at]) + bad for at in range(copies)))
    ingest([str(path)], folder / "positions" / "games", CONFIG, workers=1)
    return folder / "positions" / "games"


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a dump of three chunks and its dataset."""
    return write_dataset(tmp_path_factory.mktemp("verified"), games=60, copies=30)


@pytest.fixture
def directory(original: Path, tmp_path: Path) -> Path:
    """Copy the dataset with its dump."""
    return shutil.copytree(original.parents[1], tmp_path / "copy") / "positions" / "games"


def find_dump(directory: Path) -> Path:
    return directory.parents[1] / "dumps" / "games.pgn"


def verify(directory: Path, **options: Any) -> dict[str, Any]:
    return verify_dataset(directory, [str(find_dump(directory))], **options)


def list_problems(found: dict[str, Any]) -> list[str]:
    return [line for name in ("files", "splits", "source", "rows") for line in found[name]]


def rewrite(directory: Path, name: str, change: Callable[[pa.Table], pa.Table]) -> None:
    """Change a shard of a dataset, and its hash in the manifest."""
    write_rows(change(pq.read_table(directory / name)), directory / name)
    update_hashes(directory)


def test_an_undamaged_dataset_has_no_problems(original: Path) -> None:
    found = verify(original, rows=10)
    assert list_problems(found) == []
    assert found["compared"] == 10


def test_changed_missing_and_unlisted_files_are_named(directory: Path) -> None:
    data = bytearray((directory / "train-00001-0.parquet").read_bytes())
    data[len(data) // 2] ^= 1
    (directory / "train-00001-0.parquet").write_bytes(data)
    (directory / "test-00000-0.parquet").unlink()
    shutil.copy(directory / "val-00000-0.parquet", directory / "val-00099-0.parquet")
    assert sorted(verify(directory)["files"]) == [
        "test-00000-0.parquet: missing",
        "train-00001-0.parquet: does not match its hash",
        "val-00099-0.parquet: not in the manifest",
    ]


def test_a_manifest_with_another_format_of_planes_is_noticed(directory: Path) -> None:
    """Training relies on the manifest's format, and would refuse the shards."""
    edit_json(directory / "manifest.json", lambda manifest: manifest.update(planes="compact"))
    shards = [entry["name"] for entry in read_manifest(directory)["files"] if entry["split"]]
    assert verify(directory)["files"] == [
        f"{name}: has planes all, but the manifest says compact" for name in shards
    ]


def test_changed_rows_with_matching_hashes_are_noticed(tmp_path: Path) -> None:
    """One row of each shard is changed, in a dataset so small that all rows are compared."""

    def change_first_row(table: pa.Table) -> pa.Table:
        pawns = table["own_pawns"][0].as_py() ^ 1
        return set_cell("halfmove", 77, 0)(set_cell("own_pawns", pawns, 0)(table))

    directory = write_dataset(tmp_path, games=15, copies=1)
    shards = [entry["name"] for entry in read_manifest(directory)["files"] if entry["split"]]
    for name in shards:
        rewrite(directory, name, change_first_row)
    found = verify(directory, rows=10**6)["rows"]
    assert len(found) == len(shards) == 3, "no row is compared twice"
    assert all("halfmove is 77, not " in line and "planes [0] differ" in line for line in found)


def test_rows_of_every_dump_are_replayed(tmp_path: Path) -> None:
    dumps = [dump(tmp_path / f"{name}.pgn", 4, 20, first) for name, first in (("a", 0), ("b", 9))]
    made, sources = tmp_path / "made", list(map(str, dumps))
    total = ingest(sources, made, CONFIG, workers=1)["positions"]["total"]
    found = verify_dataset(made, sources, rows=10**6)
    assert (list_problems(found), found["compared"]) == ([], total)
    first_rows = sum(game["plies"] for game in games(made) if game["source"] == 0)
    some = verify_dataset(made, sources, rows=10**6, limit=dumps[0].stat().st_size)
    assert (list_problems(some), some["compared"]) == ([], first_rows)
    assert verify_dataset(made, [sources[0]] * 2, rows=10**6)["rows"], "rows of b are not in a"


def test_only_the_beginning_of_a_large_dump_is_read(original: Path) -> None:
    text = find_dump(original).read_bytes()
    pieces = iter([text[at : at + 4096] for at in range(0, len(text), 4096)])
    compared, problems = compare_rows(open_unverified(original), [pieces], 64, len(text) // 3)
    assert compared > 0
    assert problems == []
    assert sum(map(len, pieces)) > len(text) // 3, "bytes that were not read"


def test_changed_and_missing_datasets_of_a_training_set_are_named(directory: Path) -> None:
    training_set = directory.parents[1] / "set"
    join([directory], training_set)
    assert list_joined_datasets(training_set) == ([directory.resolve()], [])
    rewrite(directory, "test-00000-0.parquet", set_cell("label", 4000, 0))
    changed = ["games: its manifest has changed since it was joined"]
    assert list_joined_datasets(training_set)[1] == changed
    directory.rename(directory.parents[1] / "elsewhere")
    assert list_joined_datasets(training_set) == ([], ["games: is missing"])


def test_a_shortened_dump_is_noticed(directory: Path) -> None:
    path = find_dump(directory)
    text = path.read_text()
    path.write_text(text[: text.index("[Event ", len(text) // 2)])
    found = verify(directory, rows=60)
    assert found["source"][0].endswith("or has changed")
    assert any("is not in the dump" in line for line in found["rows"])


def test_a_manifest_without_a_valid_chunk_size_is_refused(directory: Path) -> None:
    path = directory / "manifest.json"
    edit_json(path, lambda manifest: manifest["config"].update(chunk_mib="1"))
    with pytest.raises(DatasetError, match=r"manifest\.json: config\.chunk_mib"):
        verify(directory)


def test_the_command_reports_differences_and_what_it_did_not_check(
    directory: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def call(*words: str) -> tuple[int, dict[str, Any]]:
        monkeypatch.setattr(sys, "argv", ["fianchetto", "verify", str(directory), *words, "--json"])
        with pytest.raises(SystemExit) as ended:
            main()
        out = capsys.readouterr().out
        return int(ended.value.code or 0), json.loads(out.splitlines()[-1]) if out else {}

    assert call("--source", str(directory / "nosuch.pgn"))[0] == 2
    assert call("--sample", "-1")[0] == 2
    code, found = call("--sample", "4")  # the dump is where Dagster stores it
    assert code == 0
    counts = found["datasets"]["games"]
    assert (counts["replayed_with_python_chess"], counts["not_checked"]) == (4, [])
    find_dump(directory).unlink()
    code, found = call("--sample", "0")
    assert (code, found["datasets"]["games"]["not_checked"]) == (0, ["source", "rows"])
    (directory / "test-00000-0.parquet").unlink()
    code, found = call()
    assert (code, found["problems"]) == (1, ["games: test-00000-0.parquet: missing"])
    with pytest.raises(DifferenceError, match=r"^1 difference in "):
        Verify(datasets=(directory,)).run()
    assert found["datasets"]["games"]["not_checked"] == ["splits", "source", "rows"]


def test_datasets_with_the_same_name_and_without_a_grandparent_are_verified(
    original: Path, tmp_path: Path
) -> None:
    for folder in ("a", "b"):
        shutil.copytree(original, tmp_path / folder / "same")
    command = Verify(datasets=(tmp_path / "a" / "same", tmp_path / "b" / "same"), sample=0)
    assert len(command.run()["datasets"]) == 2
    assert find_dumps(Path("/positions"), {"sources": [{"name": "not-there.pgn"}]}) is None
