"""Every kind of damage to a dataset's files is refused in one line that names the file.

Damage is read through `Dataset`, as every command does, and some kinds through each command, which
must end in one line and leave nothing in --out. An exception other than UserError fails the test,
since a user would see a traceback.
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
    INVALID_JSON,
    MISSING,
    NET,
    OTHER,
    SET,
    SHARD,
    Change,
    Damage,
    change_table,
    delete,
    overwrite,
    replace_by_folder,
    set_cell,
    set_field,
    set_type,
    truncate,
)
from tests.waiting import drop_slow_lines

MANIFEST, PAGE = f"{DATASET}/manifest.json", f"{SET}/training_set.json"
CARD, GAMES = f"{NET}/checkpoint.json", f"{DATASET}/games.parquet"

Damages = dict[str, tuple[Damage, str]]
"""By name: damage, and the file that the error must name."""


def invalid(file: str, field: str, *values: Any) -> Damages:
    """Set one field of a JSON file, by its dotted name, to each of the values in turn."""
    keys = [int(key) if key.isdigit() else key for key in field.split(".")]

    def name(value: Any) -> str:
        return "missing" if value is MISSING else "changed" if callable(value) else str(value)[:30]

    return {
        f"{field} = {name(value)}": (set_field(file, *keys, value=value), file) for value in values
    }


MANIFESTS: Damages = {
    **{f"bytes: {it}": (overwrite(MANIFEST, data), MANIFEST) for it, data in INVALID_JSON.items()},
    "a folder": (replace_by_folder(MANIFEST), MANIFEST),
    **invalid(MANIFEST, "format_version", "other"),
    **invalid(MANIFEST, "encoding_version", None),
    **invalid(MANIFEST, "moves_hash", "other"),
    **invalid(MANIFEST, "sources", MISSING, [{"name": "a"}]),
    **invalid(MANIFEST, "games.used", 10**6),
    **invalid(MANIFEST, "games.read", 1, 2**33),
    **invalid(MANIFEST, "positions.total", -1, 1.5, "7", True, None, 12),
    **invalid(MANIFEST, "positions_dropped", {"filter": -1}),
    **invalid(MANIFEST, "files", [], [7]),
    **invalid(MANIFEST, "files.0.rows", 0),
    **invalid(MANIFEST, "files.0.sha256", "0" * 63),
    **invalid(MANIFEST, "files.0.split", "latest", None),
    **invalid(MANIFEST, "files.0.name", "../x.parquet", "/etc/passwd", "a\nb", "", "x" * 300),
    **invalid(MANIFEST, "files", lambda files: [*files, files[0]]),
    "wrong bytes": (set_field(MANIFEST, "files", 0, "bytes", value=1), SHARD),
    "wrong hash": (set_field(MANIFEST, "files", 0, "sha256", value="0" * 64), SHARD),
    "missing shard": (delete(SHARD), SHARD),
    "a folder as shard": (replace_by_folder(SHARD), SHARD),
    "other bytes as shard": (overwrite(SHARD, b"PAR1 nothing else"), SHARD),
    "missing games.parquet": (delete(GAMES), GAMES),
    "other bytes as games.parquet": (overwrite(GAMES, b""), GAMES),
}
"""Refused when a dataset is opened."""


def change_shard(change: Change, **writer: Any) -> Damage:
    """Change the table of the shard, and write it with other options than a shard has."""
    return change_table(SHARD, change, **(writer or {"compression": "zstd"}))


def make_nullable(table: pa.Table) -> pa.Table:
    fields = [field.with_nullable(True) for field in table.schema]
    return table.cast(pa.schema(fields, table.schema.metadata))


def repeat_rows(table: pa.Table) -> pa.Table:
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
"""Invalid values of one row."""
ROWS = {
    "half a shard": truncate(SHARD, 0.5),
    "an empty shard": truncate(SHARD, 0.0),
    "a shard without its end": truncate(SHARD, 0.99),
    "a missing column": change_table(SHARD, lambda table: table.drop_columns(["castling"])),
    "an additional column": change_shard(lambda table: table.append_column("x", table["label"])),
    "labels of 32 bits": change_shard(set_type("label", pa.int32())),
    "labels as text": change_shard(set_type("label", pa.string(), str)),
    "planes of 63 bytes": change_shard(set_type("moves_1", pa.binary(63), lambda row: bytes(63))),
    "planes of any length": change_shard(set_type("moves_1", pa.binary(), lambda row: bytes(row))),
    "visits as numbers": change_shard(set_type("visits", pa.list_(pa.int32()), lambda row: [1])),
    "row groups of 40,000": change_shard(repeat_rows, row_group_size=40_000),
    "nullable labels": change_shard(make_nullable),
    "no hash of the move table": change_shard(lambda table: table.replace_schema_metadata({})),
    "an illegal label": change_table(SHARD, hostile.set_illegal_label),
    **{
        f"{name} is {str(value)[:40]}": change_table(SHARD, set_cell(name, value))
        for name, values in CELLS.items()
        for value in values
    },
}
"""Refused when the rows are read."""

GAME_TABLES = {
    "half a table of games": truncate(GAMES, 0.5),
    "an unknown split": change_table(GAMES, set_type("split", pa.string(), lambda row: "latest")),
    "no identity": change_table(GAMES, set_cell("identity", None)),
    "a result of 2": change_table(GAMES, set_cell("result", 2)),
    "identities as text": change_table(GAMES, set_type("identity", pa.string(), str)),
    "no column of splits": change_table(GAMES, lambda table: table.drop_columns(["split"])),
    "dates as numbers": change_table(GAMES, set_type("date", pa.int32())),
}
"""Refused when the table of games is read."""

SETS: Damages = {
    "no object": (overwrite(PAGE, b"[]"), PAGE),
    "a folder": (replace_by_folder(PAGE), PAGE),
    **invalid(PAGE, "training_set_version", 1),
    **invalid(PAGE, "positions", {}),
    **invalid(PAGE, "positions.train", 3),
    **invalid(PAGE, "datasets", [], [{"name": "x"}]),
    **invalid(PAGE, "datasets.0.name", "a\nb"),
    **invalid(PAGE, "datasets.0.path", "", "\0"),
    **invalid(PAGE, "datasets.0.held_out", "2014.05"),
    **invalid(PAGE, "datasets.0.held_rows", {"train-00000-0.parquet": [1 << 40]}),
}


class ReachedError(UserError):
    """Raised where the work of a command would begin, after all checks."""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make the workplace once."""
    return hostile.workplace(tmp_path_factory.mktemp("hostile") / "good")


@pytest.fixture
def copy(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Copy the workplace; training ends after its first batch, a fine-tune before it begins."""

    def train(config: Any, row: Any, batches: Any, *_: Any, **__: Any) -> None:
        next(batches(0))
        raise ReachedError("training would begin")

    def lock(loop: Any) -> None:
        raise ReachedError("the loop would begin")

    monkeypatch.setattr("model.training.loop.train", train)
    folder_of_loop = type("FolderOfLoop", (JobFolder,), {"lock": lock})
    monkeypatch.setattr("pipeline.finetune.loop.JobFolder", folder_of_loop)
    monkeypatch.setattr("pipeline.cli.commands.base.signal.signal", lambda *_: None)
    monkeypatch.setattr("pipeline.cli.main.parse", lambda words: parse_once(*words))
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    folder = place.parent / "copy"
    shutil.rmtree(folder, ignore_errors=True)
    return hostile.copy_workplace(place, folder)


@cache
def parse_once(*words: str) -> Any:
    """Parse a command line once: all copies have the same path, and parsing is slow."""
    return parse(words)


def command_line(command: str, folder: Path, positions: str) -> list[str]:
    """Return the words of a command that reads a dataset or training set."""
    read, net, out = folder / positions, folder / NET, folder / "out" / command
    train = "--steps 1 --batch-size 16 --set threads=1 --set teach=both"
    options = {
        "train": f"--positions {read} {train}",
        "report": f"--checkpoint {net} --positions {read} --limit 5",
        "report train": f"--checkpoint {net} --positions {read} --split train",
        "audit": f"{read}",
        "join": f"{read} {folder / OTHER} --hold-out none",
        "verify": f"{read}",
        "finetune": f"--checkpoint {net} --positions {read} --generations 1",
    }[command]
    out_option = [] if command == "verify" else ["--out", str(out)]
    return [command.partition(" ")[0], *options.split(), *out_option]


def is_refused(
    folder: Path,
    command: str,
    positions: str,
    file: str,
    capsys: pytest.CaptureFixture[str],
    patch: pytest.MonkeyPatch,
) -> bool:
    """Return whether a command refuses the file, which it must do in one line, writing nothing."""
    patch.setattr(sys, "argv", ["fianchetto", *command_line(command, folder, positions)])
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
    """Read all columns of an epoch; verifying and joining must not raise other errors either."""
    with suppress(UserError):
        verify_dataset(path)
    with suppress(UserError):
        join([path], path.parents[1] / "joined")
    list(Batches([path], "train", batch_size=16, columns=COLUMNS))


def read_games(path: Path) -> None:
    list(Dataset.open(path).read_games(tuple(GAMES_COLUMNS)))


TABLES: dict[str, tuple[Damages, str, Callable[[Path], object]]] = {
    "manifests": (MANIFESTS, DATASET, Dataset.open),
    "rows": ({name: (damage, SHARD) for name, damage in ROWS.items()}, DATASET, read_rows),
    "games": ({name: (damage, GAMES) for name, damage in GAME_TABLES.items()}, DATASET, read_games),
    "sets": (SETS, SET, Dataset.open),
}


@pytest.mark.parametrize(
    ("table", "name"), [(table, name) for table in TABLES for name in TABLES[table][0]]
)
def test_a_damaged_file_is_refused_in_one_line(table: str, name: str, copy: Path) -> None:
    damages, folder, read = TABLES[table]
    damage, file = damages[name]
    damage(copy)
    with pytest.raises(DatasetError) as refusal:
        read(copy / folder)
    assert Path(file).name in str(refusal.value)
    assert "\n" not in str(refusal.value)


def damage_joined_rows(folder: Path) -> None:
    ROWS["label is 4096"](folder)
    hostile.update_training_set(folder)


CONSUMERS = ("train", "report", "audit", "join", "verify", "finetune")
COMMANDS: dict[str, tuple[Damage, str, str, tuple[str, ...]]] = {
    "a manifest": (overwrite(MANIFEST, b"[]"), DATASET, MANIFEST, CONSUMERS),
    "a shard": (delete(SHARD), DATASET, SHARD, CONSUMERS),
    "rows": (ROWS["label is 4096"], DATASET, SHARD, ("train", "audit", "report train")),
    "games": (GAME_TABLES["half a table of games"], DATASET, GAMES, ("join", "verify", "audit")),
    "rows of a set": (damage_joined_rows, SET, SHARD, ("train",)),
    "a training set": (overwrite(PAGE, b"{}"), SET, PAGE, ("train", "report", "audit")),
    "a card": (overwrite(CARD, b"{}"), DATASET, "net", ("report", "finetune")),
}
"""Damage, the dataset that is read, the file that is named, and the commands that refuse it."""


@pytest.mark.parametrize("name", COMMANDS)
def test_commands_refuse_damage_in_one_line_and_write_nothing(
    name: str, copy: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    damage, positions, file, commands = COMMANDS[name]
    damage(copy)
    for command in commands:
        assert is_refused(copy, command, positions, file, capsys, monkeypatch), command


def test_commands_accept_an_undamaged_dataset(
    copy: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for command in CONSUMERS:
        assert not is_refused(copy, command, DATASET, "", capsys, monkeypatch), command


@pytest.mark.parametrize("name", ["label is 4096", "half a shard", "half a table of games"])
def test_dagsters_page_shows_the_error_in_place_of_pictures(
    name: str, copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (ROWS | GAME_TABLES)[name](copy)
    directory = copy / DATASET
    manifest = read_manifest(directory)
    for entry in manifest["files"]:  # sample rows of the damaged shard only
        entry["rows"] = entry["rows"] if entry["name"] == Path(SHARD).name else 0
    monkeypatch.setenv("FIANCHETTO_DATASETS", str(copy))
    page = metadata.describe_positions(directory, manifest)
    assert ".parquet" in str(page["sample_of_positions"].value)
    assert "/pictures/" not in str(page["sample_of_positions"].value) + str(page["elo"].value)
    with pytest.raises(DatasetError):
        metadata.read_ratings(directory, {**manifest, "games": {"read": 5}})


def test_long_text_repeated_by_a_dictionary_is_refused_before_it_is_decoded(copy: Path) -> None:
    made = copy / DATASET
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
    hostile.update_hashes(made)
    assert games.stat().st_size < 200_000
    before = pa.total_allocated_bytes()
    with pytest.raises(DatasetError, match=r"games\.parquet .*date holds 4,294,967,296 bytes"):
        next(read_game_tables(made, manifest, ["date"]))
    assert pa.total_allocated_bytes() - before < 64 << 20
