"""Files from strangers, one table: each kind of damage is refused once, in one line that names the
file.

Damage is read through `Dataset`, as every command does; a few kinds are tried on each command,
which ends in one line and leaves nothing in --out. Whatever passes the checks as an exception that
is no UserError fails the test, as it would be a traceback for a person.
"""

import math
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
from pipeline.dataset.files.columns import COLUMNS
from pipeline.dataset.files.games import GAMES_COLUMNS, read_game_tables
from pipeline.dataset.files.manifest import read_manifest
from pipeline.dataset.files.verify_files import CACHE_VARIABLE
from pipeline.dataset.join import join
from pipeline.defs.pages import metadata
from pipeline.errors import DatasetError
from pipeline.storage.job_folder import JobFolder
from pipeline.validation.verify import verify_dataset
from tests.pipeline import hostile
from tests.pipeline.hostile import (
    DATASET,
    GONE,
    NET,
    NO_JSON,
    OTHER,
    SET,
    SHARD,
    Spoil,
    column,
    cut,
    edited,
    folder_instead,
    gone,
    retyped,
    stored,
    written,
)
from tests.waiting import drop_slow_lines

MANIFEST, PAGE = f"{DATASET}/manifest.json", f"{SET}/training_set.json"
CARD, GAMES = f"{NET}/checkpoint.json", f"{DATASET}/games.parquet"


class ReachedError(UserError):
    """All checks before the work were passed."""


Spoilt = dict[str, tuple[Spoil, str]]
"""By name: what spoils a file, and the file that the refusal must name."""


def wrong(file: str, way: str, *values: Any) -> Spoilt:
    """Set one field of a JSON file, by its dotted name, to each of some values."""
    keys = [int(key) if key.isdigit() else key for key in way.split(".")]
    names = [
        "gone" if value is GONE else "changed" if callable(value) else str(value)[:30]
        for value in values
    ]
    spoils = (edited(file, *keys, value=value) for value in values)
    return {f"{way} = {name}": (spoil, file) for name, spoil in zip(names, spoils, strict=True)}


MANIFESTS: Spoilt = {
    **{f"bytes: {name}": (written(MANIFEST, data), MANIFEST) for name, data in NO_JSON.items()},
    "a folder": (folder_instead(MANIFEST), MANIFEST),
    **wrong(MANIFEST, "format_version", "other"),
    **wrong(MANIFEST, "encoding_version", None),
    **wrong(MANIFEST, "moves_hash", "other"),
    **wrong(MANIFEST, "sources", GONE, [{"name": "a"}]),
    **wrong(MANIFEST, "games.used", 10**6),
    **wrong(MANIFEST, "games.read", 1, 2**33),
    **wrong(MANIFEST, "positions.total", -1, 1.5, "7", True, None, 12),
    **wrong(MANIFEST, "positions_dropped", {"filter": -1}),
    **wrong(MANIFEST, "files", [], [7]),
    **wrong(MANIFEST, "files.0.rows", 0),
    **wrong(MANIFEST, "files.0.sha256", "0" * 63),
    **wrong(MANIFEST, "files.0.split", "latest", None),
    **wrong(MANIFEST, "files.0.name", "../x.parquet", "/etc/passwd", "a\nb", "", "x" * 300),
    **wrong(MANIFEST, "files", lambda files: [*files, files[0]]),
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


def changed(change: Callable[[pa.Table], pa.Table]) -> Spoil:
    """Write the shard again with another table, and other options than a shard has."""
    return stored(SHARD, change, compression="zstd")


def nullable(table: pa.Table) -> pa.Table:
    fields = [field.with_nullable(True) for field in table.schema]
    return table.cast(pa.schema(fields, table.schema.metadata))


def large_groups(table: pa.Table) -> pa.Table:
    return pa.concat_tables([table] * (40_000 // len(table) + 1))


CELLS: dict[str, list[Any]] = {
    "label": [4096, 65535],
    "promotion": [1],
    "castling": [16],
    "result": [-2],
    "own_king": [0],
    "moves_5_to_7": [bytes([255]) * 192],
    "ep_file": [9],
    "last_move": [5000],
    "game": [4_000_000_000],
    "root_value": [math.inf, 7.0],
    "visits": [
        [{"label": 4096, "share": 1.0}],
        [{"label": 4095, "share": 1.0}],
        [{"label": 0, "share": math.nan}],
        [{"label": 0, "share": 2.0}],
        [{"label": 0, "share": 0.0}] * 300_000,
    ],
}
"""Values of one row that no row has."""
ROWS = {
    "half a shard": cut(SHARD, 0.5),
    "an empty shard": cut(SHARD, 0.0),
    "a shard without its end": cut(SHARD, 0.99),
    "a column is missing": stored(SHARD, lambda table: table.drop_columns(["castling"])),
    "a column more": changed(lambda table: table.append_column("more", table["label"])),
    "labels of 32 bits": changed(retyped("label", pa.int32())),
    "labels are text": changed(retyped("label", pa.string(), str)),
    "planes of 63 bytes": changed(retyped("moves_1", pa.binary(63), lambda row: bytes(63))),
    "planes of any length": changed(retyped("moves_1", pa.binary(), lambda row: bytes(row))),
    "visits are no structs": changed(retyped("visits", pa.list_(pa.int32()), lambda row: [1])),
    "row groups of 40,000": stored(SHARD, large_groups, row_group_size=40_000),
    "labels that may be null": changed(nullable),
    "of another vocabulary": changed(lambda table: table.replace_schema_metadata({})),
    "a label that is not legal": stored(SHARD, hostile.illegal_label),
    **{
        f"{name} is {str(value)[:40]}": stored(SHARD, column(name, value))
        for name, values in CELLS.items()
        for value in values
    },
}
"""Refused when the rows are read."""

GAME_TABLES = {
    "half a table of games": cut(GAMES, 0.5),
    "a split of games": stored(GAMES, retyped("split", pa.string(), lambda row: "latest")),
    "no identity": stored(GAMES, column("identity", None)),
    "a result of 2": stored(GAMES, column("result", 2)),
    "identities are text": stored(GAMES, retyped("identity", pa.string(), str)),
    "no column of splits": stored(GAMES, lambda table: table.drop_columns(["split"])),
    "dates are numbers": stored(GAMES, retyped("date", pa.int32())),
}
"""Refused when the table of games is read."""

SETS: Spoilt = {
    "no object": (written(PAGE, b"[]"), PAGE),
    "a folder": (folder_instead(PAGE), PAGE),
    **wrong(PAGE, "training_set_version", 1),
    **wrong(PAGE, "positions", {}),
    **wrong(PAGE, "positions.train", 3),
    **wrong(PAGE, "datasets", [], [{"name": "x"}]),
    **wrong(PAGE, "datasets.0.name", "a\nb"),
    **wrong(PAGE, "datasets.0.path", "", "\0"),
    **wrong(PAGE, "datasets.0.held_out", "2014.05"),
    **wrong(PAGE, "datasets.0.held_rows", {"train-00000-0.parquet": [1 << 40]}),
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make the workplace once."""
    return hostile.workplace(tmp_path_factory.mktemp("hostile") / "good")


@pytest.fixture
def spoilt(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Copy the workplace; training ends after its first batch, a fine-tune before it begins."""

    def begin(config: Any, row: Any, batches: Any, *_: Any, **__: Any) -> None:
        next(batches(0))
        raise ReachedError("training would begin")

    def go(loop: Any) -> None:
        raise ReachedError("the loop would begin")

    monkeypatch.setattr("model.training.loop.train", begin)
    folder_of_loop = type("FolderOfLoop", (JobFolder,), {"lock": go})
    monkeypatch.setattr("pipeline.finetune.loop.JobFolder", folder_of_loop)
    monkeypatch.setattr("pipeline.cli.commands.base.signal.signal", lambda *_: None)
    monkeypatch.setattr("pipeline.cli.main.parse", lambda words: parsed(*words))
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    folder = place.parent / "copy"
    shutil.rmtree(folder, ignore_errors=True)
    return hostile.copied(place, folder)


@cache
def parsed(*words: str) -> Any:
    """Parse a command line once: all copies have the same path, and parsing is slow."""
    return parse(words)


def words(command: str, folder: Path, positions: str) -> list[str]:
    """Return the words of a command on a dataset or training set."""
    on, net, out = folder / positions, folder / NET, folder / "out" / command
    train = "--steps 1 --batch-size 16 --set threads=1 --set teach=both"
    line = {
        "train": f"--positions {on} {train}",
        "report": f"--checkpoint {net} --positions {on} --limit 5",
        "report train": f"--checkpoint {net} --positions {on} --split train",
        "audit": f"{on}",
        "join": f"{on} {folder / OTHER} --hold-out none",
        "verify": f"{on}",
        "finetune": f"--checkpoint {net} --positions {on} --generations 1",
    }[command]
    to = [] if command == "verify" else ["--out", str(out)]
    return [command.partition(" ")[0], *line.split(), *to]


def refused(
    folder: Path,
    command: str,
    positions: str,
    file: str,
    capsys: pytest.CaptureFixture[str],
    patch: pytest.MonkeyPatch,
) -> bool:
    """Return whether a command refused the file in one line and wrote nothing."""
    patch.setattr(sys, "argv", ["fianchetto", *words(command, folder, positions)])
    with pytest.raises(SystemExit) as ended:
        main()
    code, (out, err) = int(ended.value.code or 0), capsys.readouterr()
    if code == 0 or "would begin" in err:
        return False
    assert code == (1 if command == "verify" and "difference" in err else 2), err
    assert drop_slow_lines(err).count("\n") == 1, err
    assert Path(file).name in err + (out if command == "verify" else ""), err
    assert not [path for path in (folder / "out").rglob("*") if path.is_file()]
    return True


def read_rows(path: Path) -> None:
    """Read all columns of an epoch; commands that need not read the damage raise no other error."""
    with suppress(UserError):
        verify_dataset(path)
    with suppress(UserError):
        join([path], path.parents[1] / "joined")
    list(Batches([path], "train", batch_size=16, columns=COLUMNS))


def read_games(path: Path) -> None:
    list(Dataset.open(path).read_games(tuple(GAMES_COLUMNS)))


TABLES: dict[str, tuple[Spoilt, str, Callable[[Path], object]]] = {
    "manifests": (MANIFESTS | FILES, DATASET, Dataset.open),
    "rows": ({name: (spoil, SHARD) for name, spoil in ROWS.items()}, DATASET, read_rows),
    "games": ({name: (spoil, GAMES) for name, spoil in GAME_TABLES.items()}, DATASET, read_games),
    "sets": (SETS, SET, Dataset.open),
}


@pytest.mark.parametrize(
    ("table", "name"), [(table, name) for table in TABLES for name in TABLES[table][0]]
)
def test_a_spoilt_file_is_refused_in_one_line(table: str, name: str, spoilt: Path) -> None:
    cases, folder, read = TABLES[table]
    spoil, file = cases[name]
    spoil(spoilt)
    with pytest.raises(DatasetError) as refusal:
        read(spoilt / folder)
    assert Path(file).name in str(refusal.value)
    assert "\n" not in str(refusal.value)


def spoil_joined(folder: Path) -> None:
    ROWS["label is 4096"](folder)
    hostile.rejoined(folder)


CONSUMERS = ("train", "report", "audit", "join", "verify", "finetune")
COMMANDS: dict[str, tuple[Spoil, str, str, tuple[str, ...]]] = {
    "a manifest": (written(MANIFEST, b"[]"), DATASET, MANIFEST, CONSUMERS),
    "a shard": (*(gone(SHARD), DATASET, SHARD), CONSUMERS),
    "rows": (ROWS["label is 4096"], DATASET, SHARD, ("train", "audit", "report train")),
    "games": (GAME_TABLES["half a table of games"], DATASET, GAMES, ("join", "verify", "audit")),
    "rows of a set": (spoil_joined, SET, SHARD, ("train",)),
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


@pytest.mark.parametrize("name", ["label is 4096", "half a shard", "half a table of games"])
def test_dagsters_pages_say_it_too(
    name: str, spoilt: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page of positions shows the error instead of pictures."""
    (ROWS | GAME_TABLES)[name](spoilt)
    directory = spoilt / DATASET
    manifest = read_manifest(directory)
    for entry in manifest["files"]:  # sample rows of the damaged shard only
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
    table, count = pq.read_table(games), 4096
    zeros, long = pa.array([0] * count, pa.int32()), pa.array(["x" * (1 << 20)])
    texts = pa.DictionaryArray.from_arrays(zeros, long)
    wide = pa.concat_tables([table] * (count // len(table) + 1)).slice(0, count)
    at, field = wide.schema.get_field_index("date"), pa.field("date", texts.type)
    wide = wide.set_column(at, field, texts)
    pq.write_table(wide, games, compression="zstd", store_schema=False)
    manifest = read_manifest(made)
    manifest["games"]["read"] = count
    hostile.seal(made)
    assert games.stat().st_size < 200_000
    before = pa.total_allocated_bytes()
    with pytest.raises(DatasetError, match=r"games\.parquet .*date holds 4,294,967,296 bytes"):
        next(read_game_tables(made, manifest, ["date"]))
    assert pa.total_allocated_bytes() - before < 64 << 20


def test_what_nobody_spoilt_is_taken_by_all(
    spoilt: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for command in CONSUMERS:
        assert not refused(spoilt, command, DATASET, "", capsys, monkeypatch), command
