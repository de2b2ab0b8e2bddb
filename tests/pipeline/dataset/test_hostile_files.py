"""Files from strangers, one table: each kind of damage is refused once, in one line that names the
file.

Damage is read through `Dataset`, as every command does; a few kinds are tried on each command,
which ends in one line and leaves nothing in --out. Whatever passes the checks as an exception that
is no UserError fails the test, as it would be a traceback for a person.
"""

import math
import os
import shutil
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from engine.errors import UserError
from pipeline.cli.main import main, parse
from pipeline.dataset.batches import Batches
from pipeline.dataset.dataset import Dataset
from pipeline.dataset.fen_rows import fen_rows
from pipeline.dataset.files.columns import COLUMNS
from pipeline.dataset.files.games import GAMES_COLUMNS, games_tables
from pipeline.dataset.files.manifest import read_manifest
from pipeline.dataset.files.verify_files import CACHE
from pipeline.dataset.join import join
from pipeline.defs.pages import metadata
from pipeline.errors import DatasetError
from pipeline.storage.job_folder import JobFolder
from pipeline.validation.audit import audit
from pipeline.validation.verify import verify_dataset
from tests.pipeline.hostile import (
    DATASET,
    NET,
    NO_JSON,
    OTHER,
    SET,
    SHARD,
    Case,
    Spoil,
    cases,
    column,
    copied,
    cut,
    edited,
    folder_instead,
    gone,
    illegal_label,
    rejoined,
    retyped,
    seal,
    stored,
    without,
    workplace,
    written,
)
from tests.waiting import drop_slow_lines

MANIFEST, PAGE, CARD = (
    f"{DATASET}/manifest.json",
    f"{SET}/training_set.json",
    f"{NET}/checkpoint.json",
)
GAMES = f"{DATASET}/games.parquet"
TRAINING = ["--steps", "1", "--batch-size", "16", "--set", "threads=1", "--set", "teach=both"]


class ReachedError(UserError):
    """All checks before the work were passed."""


def no_json(file: str) -> dict[str, tuple[Spoil, str]]:
    found = {f"{file}: {name}": (written(file, data), file) for name, data in NO_JSON.items()}
    return found | {f"{file}: a folder": (folder_instead(file), file)}


def wrong(file: str, *way: str | int, values: list[Any]) -> dict[str, tuple[Spoil, str]]:
    """Set one field of a JSON file to each of some values."""
    name = ".".join(map(str, way))
    return {
        f"{name} = {str(value)[:30]}": (edited(file, *way, value=value), file) for value in values
    }


NEEDED = (
    "sources",
    "config",
    "games",
    "positions",
    "files",
    "bytes_per_position",
    "label_collisions",
)
NUMBERS = [-1, 1.5, "7", True, None, [], 10**18]
MANIFESTS = no_json(MANIFEST) | {
    **{f"no {name}": (without(MANIFEST, name), MANIFEST) for name in NEEDED},
    **wrong(MANIFEST, "sources", values=[7, [7], [{"name": "a"}], {}]),
    **wrong(MANIFEST, "config", values=[7, None]),
    **wrong(MANIFEST, "games", values=[7, {}, {"read": 1}]),
    **wrong(MANIFEST, "games", "used", values=[*NUMBERS, 10**6]),
    **wrong(MANIFEST, "games", "read", values=[1, 2**33]),
    **wrong(MANIFEST, "positions", values=[7, {}, {"total": 5}]),
    **wrong(MANIFEST, "positions", "total", values=[*NUMBERS, 12]),
    **wrong(MANIFEST, "positions", "train", values=[0, 10**15]),
    **wrong(MANIFEST, "positions_dropped", values=[7, {"filter": -1}]),
    **wrong(MANIFEST, "bytes_per_position", values=["x", -1.0]),
    **wrong(MANIFEST, "files", values=["train", {}, [], [7]]),
    **wrong(MANIFEST, "files", 0, "rows", values=[*NUMBERS, 10**15, 0]),
    **wrong(MANIFEST, "files", 0, "bytes", values=[-1, None]),
    **wrong(MANIFEST, "files", 0, "sha256", values=[7, "", "0" * 63]),
    **wrong(MANIFEST, "files", 0, "split", values=[7, "latest", None]),
    **wrong(
        MANIFEST,
        "files",
        0,
        "name",
        values=["../x.parquet", "/etc/passwd", "a\nb.parquet", "", None, "x" * 300],
    ),
    "a file twice": (edited(MANIFEST, "files", value=lambda files: [*files, files[0]]), MANIFEST),
}
FILES = {
    "bytes lie": (edited(MANIFEST, "files", 0, "bytes", value=1), SHARD),
    "a hash lies": (edited(MANIFEST, "files", 0, "sha256", value="0" * 64), SHARD),
    "a shard is gone": (gone(SHARD), SHARD),
    "a shard is a folder": (folder_instead(SHARD), SHARD),
    "a shard is other bytes": (written(SHARD, b"PAR1 nothing else"), SHARD),
    "games.parquet is gone": (gone(GAMES), GAMES),
    "games.parquet is other bytes": (written(GAMES, b""), GAMES),
}
"""Refused when a dataset is opened."""

ROWS = {
    "half a shard": cut(SHARD, 0.5),
    "an empty shard": cut(SHARD, 0.0),
    "a shard without its end": cut(SHARD, 0.99),
    "a column is missing": stored(SHARD, lambda table: table.drop_columns(["castling"])),
    "a column more": stored(
        SHARD, lambda table: table.append_column("more", table["label"]), compression="zstd"
    ),
    "labels of 32 bits": stored(SHARD, retyped("label", pa.int32()), compression="zstd"),
    "labels are text": stored(SHARD, retyped("label", pa.string(), str), compression="zstd"),
    "planes of 63 bytes": stored(
        SHARD, retyped("moves_1", pa.binary(63), lambda row: bytes(63)), compression="zstd"
    ),
    "planes of any length": stored(
        SHARD, retyped("moves_1", pa.binary(), lambda row: bytes(row)), compression="zstd"
    ),
    "visits are no structs": stored(
        SHARD, retyped("visits", pa.list_(pa.int32()), lambda row: [1]), compression="zstd"
    ),
    "row groups of 40,000": stored(
        SHARD,
        lambda table: pa.concat_tables([table] * (40_000 // len(table) + 1)),
        row_group_size=40_000,
    ),
    "labels that may be null": stored(
        SHARD,
        lambda table: table.cast(
            pa.schema([field.with_nullable(True) for field in table.schema], table.schema.metadata)
        ),
        compression="zstd",
    ),
    "of another vocabulary": stored(
        SHARD, lambda table: table.replace_schema_metadata({}), compression="zstd"
    ),
    "label 4096": stored(SHARD, column("label", 4096)),
    "label 65535": stored(SHARD, column("label", 65535)),
    "a label that is not legal": stored(SHARD, illegal_label),
    "promotion 255": stored(SHARD, column("promotion", 255)),
    "promotion to a pawn": stored(SHARD, column("promotion", 1)),
    "castling 16": stored(SHARD, column("castling", 16)),
    "result 5": stored(SHARD, column("result", 5)),
    "result -2": stored(SHARD, column("result", -2)),
    "no pieces": stored(SHARD, column("own_king", 0)),
    "every bit": stored(SHARD, column("moves_5_to_7", bytes([255]) * 192)),
    "ep_file 9": stored(SHARD, column("ep_file", 9)),
    "last_move 5000": stored(SHARD, column("last_move", 5000)),
    "a game that is not there": stored(SHARD, column("game", 4_000_000_000)),
    "root_value infinite": stored(SHARD, column("root_value", math.inf)),
    "root_value 7": stored(SHARD, column("root_value", 7.0)),
    "visits of 4096": stored(SHARD, column("visits", [{"label": 4096, "share": 1.0}])),
    "visits that are not legal": stored(SHARD, column("visits", [{"label": 4095, "share": 1.0}])),
    "a share that is not a number": stored(
        SHARD, column("visits", [{"label": 0, "share": math.nan}])
    ),
    "300,000 visits": stored(SHARD, column("visits", [{"label": 0, "share": 0.0}] * 300_000)),
    "a share of 2": stored(SHARD, column("visits", [{"label": 0, "share": 2.0}])),
}
"""Refused when the rows are read."""

GAME_TABLES = {
    "half a table of games": cut(GAMES, 0.5),
    "a split of games": stored(GAMES, retyped("split", pa.string(), lambda row: "latest")),
    "no identity": stored(GAMES, column("identity", None)),
    "identities are text": stored(GAMES, retyped("identity", pa.string(), str)),
    "no column of splits": stored(GAMES, lambda table: table.drop_columns(["split"])),
    "splits are numbers": stored(GAMES, retyped("split", pa.int8())),
    "dates are numbers": stored(GAMES, retyped("date", pa.int32())),
}
"""Refused when the table of games is read."""

SETS = no_json(PAGE) | {
    **{f"no {name}": (without(PAGE, name), PAGE) for name in ("config", "positions", "datasets")},
    **wrong(PAGE, "training_set_version", values=[1, "2", None]),
    **wrong(PAGE, "positions", values=[7, {}]),
    **wrong(PAGE, "positions", "train", values=[*NUMBERS, 3]),
    **wrong(PAGE, "config", "hold_out", values=[7, "", None]),
    **wrong(PAGE, "datasets", values=[[], {}, [7], [{"name": "x"}]]),
    **wrong(PAGE, "datasets", 0, "name", values=[7, "", "a\nb"]),
    **wrong(PAGE, "datasets", 0, "path", values=[7, "", "\0"]),
    **wrong(PAGE, "datasets", 0, "held_out", values=[7, "no", "2014.05"]),
    **wrong(
        PAGE,
        "datasets",
        0,
        "held_rows",
        values=[7, {"train-00000-0.parquet": 7}, {"train-00000-0.parquet": [1 << 40]}],
    ),
    **wrong(PAGE, "datasets", 0, "manifest_sha256", values=[7, "x"]),
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make the workplace once."""
    return workplace(tmp_path_factory.mktemp("hostile") / "good")


@pytest.fixture
def spoilt(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Copy the workplace; trainings end where they have read their first batch, fine-tunes where
    they would begin."""

    def begin(
        config: Any, row: Any, batches: Any, out: Path, *, validation: Any = None, **_: Any
    ) -> None:
        next(batches(0))
        raise ReachedError("training would begin")

    def go(loop: Any) -> None:
        raise ReachedError("the loop would begin")

    monkeypatch.setattr("model.training.loop.train", begin)
    folder_of_loop = type("FolderOfLoop", (JobFolder,), {"held": go})
    monkeypatch.setattr("pipeline.finetune.loop.JobFolder", folder_of_loop)
    monkeypatch.setattr("pipeline.cli.commands.base.signal.signal", lambda *_: None)
    monkeypatch.setattr("pipeline.cli.main.parse", lambda words: parsed(*words))
    monkeypatch.setenv(CACHE, str(tmp_path / "cache"))
    folder = place.parent / "copy"
    shutil.rmtree(folder, ignore_errors=True)
    return copied(place, folder)


@cache
def parsed(*words: str) -> Any:
    """Parse a command line once: copies lie in one place so that words are the same, and parsing is
    most of the time."""
    return parse(words)


def words(command: str, folder: Path, positions: str) -> list[str]:
    """Give the words of a command on a dataset or training set."""
    on, out = str(folder / positions), ["--out", str(folder / "out" / command)]
    return {
        "train": ["train", "--positions", on, *out, *TRAINING],
        "report": [
            "report",
            "--checkpoint",
            str(folder / NET),
            "--positions",
            on,
            "--limit",
            "5",
            *out,
        ],
        "report train": [
            "report",
            "--checkpoint",
            str(folder / NET),
            "--positions",
            on,
            "--split",
            "train",
            *out,
        ],
        "audit": ["audit", on, *out],
        "join": ["join", on, str(folder / OTHER), "--hold-out", "none", *out],
        "verify": ["verify", on],
        "finetune": [
            "finetune",
            "--checkpoint",
            str(folder / NET),
            "--positions",
            on,
            "--generations",
            "1",
            *out,
        ],
    }[command]


def refused(
    folder: Path,
    command: str,
    positions: str,
    file: str,
    capsys: pytest.CaptureFixture[str],
    patch: pytest.MonkeyPatch,
) -> bool:
    """Run a command: whether it refused, in one line with the file's name, and left nothing. Verify
    may list it instead."""
    patch.setattr(sys, "argv", ["fianchetto", *words(command, folder, positions)])
    with pytest.raises(SystemExit) as ended:
        main()
    code, (out, err) = int(ended.value.code or 0), capsys.readouterr()
    if code == 0 or "would begin" in err:
        return False
    assert code == (1 if command == "verify" and "differences in" in err else 2), err
    assert drop_slow_lines(err).count("\n") == 1, err
    assert Path(file).name in err + (out if command == "verify" else ""), err
    left = (
        [path for path in (folder / "out").rglob("*") if path.is_file()]
        if (folder / "out").exists()
        else []
    )
    assert left == []
    return True


def ids(case: Case) -> str:
    return case[0]


def require_refusal(read: Callable[[], object], file: str) -> None:
    """Assert that reading raises a DatasetError of one line that names the file."""
    with pytest.raises(DatasetError) as refusal:
        read()
    said = str(refusal.value)
    assert Path(file).name in said
    assert "\n" not in said


def read_all(path: Path) -> list[Any]:
    """Read all columns of an epoch."""
    return list(Batches([path], "train", batch_size=16, columns=COLUMNS))


@pytest.mark.parametrize("case", cases(MANIFESTS | FILES), ids=ids)
def test_a_manifest_and_its_files(case: Case, spoilt: Path) -> None:
    case[1](spoilt)
    require_refusal(lambda: Dataset.open(spoilt / DATASET), case[2])


@pytest.mark.parametrize("name", ROWS)
def test_rows(name: str, spoilt: Path) -> None:
    ROWS[name](spoilt)
    require_refusal(lambda: read_all(spoilt / DATASET), SHARD)
    with suppress(UserError):  # they need not read the damage
        verify_dataset(spoilt / DATASET)
    with suppress(UserError):
        join([spoilt / DATASET], spoilt / "joined")


@pytest.mark.parametrize("name", GAME_TABLES)
def test_tables_of_games(name: str, spoilt: Path) -> None:
    GAME_TABLES[name](spoilt)
    dataset = Dataset.open(spoilt / DATASET)
    require_refusal(lambda: list(dataset.games(tuple(GAMES_COLUMNS))), GAMES)


@pytest.mark.parametrize("case", cases(SETS), ids=ids)
def test_a_training_set(case: Case, spoilt: Path) -> None:
    case[1](spoilt)
    require_refusal(lambda: Dataset.open(spoilt / SET), case[2])


@pytest.mark.parametrize("name", ["label 4096", "half a shard"])
def test_rows_of_a_training_sets_dataset(name: str, spoilt: Path) -> None:
    ROWS[name](spoilt)
    rejoined(spoilt)
    require_refusal(lambda: read_all(spoilt / SET), SHARD)


CONSUMERS = ("train", "report", "audit", "join", "verify", "finetune")
COMMANDS: dict[str, tuple[Spoil, str, str, tuple[str, ...]]] = {
    "a manifest": (written(MANIFEST, b"[]"), DATASET, MANIFEST, CONSUMERS),
    "a shard": (*(gone(SHARD), DATASET, SHARD), CONSUMERS),
    "rows": (ROWS["label 4096"], DATASET, SHARD, ("train", "audit", "report train")),
    "games": (GAME_TABLES["half a table of games"], DATASET, GAMES, ("join", "verify", "audit")),
    "a page": (written(PAGE, b"{}"), SET, PAGE, ("train", "report", "audit")),
    "a card": (written(CARD, b"{}"), DATASET, "net", ("report", "finetune")),
}
"""What is spoilt, the dataset read, the file named, and the commands that refuse."""


@pytest.mark.parametrize("name", COMMANDS)
def test_commands_refuse_in_one_line_and_leave_nothing(
    name: str, spoilt: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    spoil, positions, file, commands = COMMANDS[name]
    spoil(spoilt)
    for command in commands:
        assert refused(spoilt, command, positions, file, capsys, monkeypatch), command


@pytest.mark.parametrize(
    "name",
    ["label 4096", "every bit", "half a shard", "visits are no structs", "half a table of games"],
)
def test_dagsters_pages_say_it_too(
    name: str, spoilt: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page of positions shows the refusal where its pictures would be; nothing is drawn of what
    cannot be."""
    (ROWS | GAME_TABLES)[name](spoilt)
    directory = spoilt / DATASET
    manifest = read_manifest(directory)
    for entry in manifest["files"]:  # so that the sample is of the shard that was spoilt
        entry["rows"] = entry["rows"] if entry["name"] == Path(SHARD).name else 0
    monkeypatch.setenv("FIANCHETTO_DATASETS", str(spoilt))
    said = metadata.describe_positions(directory, manifest)
    assert ".parquet" in str(said["sample_of_positions"].value)
    assert "/pictures/" not in str(said["sample_of_positions"].value) + str(said["elo"].value)
    with pytest.raises(DatasetError):
        metadata.read_ratings(directory, {**manifest, "games": {"read": 5}})


def test_a_text_that_is_repeated_in_every_game_is_not_unpacked(spoilt: Path) -> None:
    made = spoilt / DATASET
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
    spoilt: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = spoilt / DATASET
    made.rename(made.parent / name)
    monkeypatch.chdir(made.parent)
    folder = Path(name)
    total = read_manifest(folder)["positions"]["total"]
    assert sum(len(table) for table in fen_rows(folder)) == total
    assert len(next(Batches([folder], batch_size=8).from_step(0))["label"]) == 8
    assert audit([folder])["copies"]["positions"] == total
    found = verify_dataset(folder)
    assert not found["files"] + found["splits"]


def test_what_nobody_spoilt_is_taken_by_all(
    spoilt: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for command in CONSUMERS:
        assert not refused(spoilt, command, DATASET, "", capsys, monkeypatch), command
