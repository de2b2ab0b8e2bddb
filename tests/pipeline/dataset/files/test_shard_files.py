"""Files from strangers, one table for all commands: each is refused in one line that names the
file, or does no harm.

What is refused leaves nothing in --out. Trainings and fine-tunes end where they would begin;
whatever passes the checks as an exception that is no UserError fails the test, as it would be a
traceback for a person.
"""

import hashlib
import math
import shutil
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.errors import UserError
from model.checkpoint import read_card
from pipeline.cli.main import main, parse
from pipeline.dataset.files.shards import publish_json, read_manifest
from pipeline.dataset.files.verify_files import CACHE
from pipeline.defs.pages import metadata
from pipeline.errors import DatasetError
from tests.pipeline.hostile import (
    DATASET,
    NET,
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


NO_JSON: dict[str, bytes] = {
    "empty": b"",
    "half an object": b'{"format_version": 2, ',
    "a list": b"[]",
    "null": b"null",
    "NaN": b'{"format_version": NaN}',
    "infinity": b'{"format_version": 1e999}',
    "lists in lists": b"[" * 100_000,
    "objects in objects": b'{"a":' * 300 + b"1" + b"}" * 300,
    "a huge integer": b'{"format_version": ' + b"9" * 400 + b"}",
    "more digits than Python reads": b'{"format_version": ' + b"9" * 5000 + b"}",
    "a key twice": b'{"format_version": 2, "format_version": 2}',
    "UTF-16": '{"format_version": 2}'.encode("utf-16"),
    "Latin-1": '{"name": "Zoë"}'.encode("latin-1"),
    "half a surrogate pair": b'{"name": "\\ud800"}',
    "a picture": b"\x89PNG\r\n\x1a\n" + bytes(100),
}


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
"""What every consumer of a dataset refuses."""

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
}
"""What is seen by whoever reads positions: train, audit, and report where it measures train."""

TRAINED = {
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
    "a share of 2": stored(SHARD, column("visits", [{"label": 0, "share": 2.0}])),
}
"""What is seen by whoever reads those columns: train."""

COUNTED = {
    "half a table of games": cut(GAMES, 0.5),
    "a split of games": stored(GAMES, retyped("split", pa.string(), lambda row: "latest")),
    "no identity": stored(GAMES, column("identity", None)),
    "identities are text": stored(GAMES, retyped("identity", pa.string(), str)),
    "no column of splits": stored(GAMES, lambda table: table.drop_columns(["split"])),
    "splits are numbers": stored(GAMES, retyped("split", pa.int8())),
    "dates are numbers": stored(GAMES, retyped("date", pa.int32())),
}
"""What is seen by whoever reads the games' table: join, audit, and verify."""

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


def lose_weights(folder: Path) -> None:
    """Take the weights of the checkpoint away."""
    next((folder / NET).glob("weights-*")).unlink()


CARDS = no_json(CARD) | {
    **{
        f"no {name}": (without(CARD, name), CARD)
        for name in ("preset", "metrics", "data", "files", "finished", "step")
    },
    **wrong(CARD, "step", values=NUMBERS),
    **wrong(CARD, "seconds", values=["x", -1.0]),
    **wrong(CARD, "metrics", values=[[], {"loss": "low"}, {"loss": None}]),
    **wrong(CARD, "preset", values=[7, {}, {"name": 7}, {"name": "x"}]),
    **wrong(CARD, "preset", "width", values=[10**9, -1, "8", None]),
    **wrong(
        CARD,
        "data",
        values=[
            [],
            {"datasets": 7},
            {"datasets": [{}]},
            {"datasets": [{"name": "x", "sources": 7}]},
        ],
    ),
    **wrong(CARD, "data", "start", values=[7, {}, {"data": 7}, {"data": {"start": {}}}]),
    **wrong(CARD, "moves_hash", values=[7, "0" * 16]),
    **wrong(
        CARD,
        "files",
        values=[[], {}, {"weights": 7}, {"weights": {"name": "weights-7.safetensors"}}],
    ),
    **wrong(CARD, "files", "weights", "name", values=["../x", "/etc/passwd", None, 7]),
    **wrong(CARD, "files", "weights", "sha256", values=[7, "x"]),
    "weights are gone": (lose_weights, f"{NET}/weights-7"),
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
    monkeypatch.setattr("pipeline.finetune.loop.alone", lambda out, busy: go(None))
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


Run = Callable[[Case, str, tuple[str, ...]], None]


@pytest.fixture
def try_all(
    spoilt: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Run:
    """Give a function that spoils the copy and has every command refuse it."""

    def run(case: Case, positions: str, commands: tuple[str, ...]) -> None:
        case[1](spoilt)
        for command in commands:
            assert refused(spoilt, command, positions, case[2], capsys, monkeypatch), (
                f"{command} took it"
            )

    return run


def ids(case: Case) -> str:
    return case[0]


CONSUMERS = ("train", "report", "audit", "join", "verify", "finetune")


@pytest.mark.parametrize("case", cases(MANIFESTS | FILES), ids=ids)
def test_a_manifest_and_its_files(case: Case, try_all: Run) -> None:
    try_all(case, DATASET, CONSUMERS)


@pytest.mark.parametrize("name", ROWS)
def test_rows(name: str, try_all: Run) -> None:
    # these read none
    commands = ("train", *(() if "promotion" in name else ("audit", "report train")))
    try_all((name, ROWS[name], SHARD), DATASET, commands)


@pytest.mark.parametrize("name", TRAINED)
def test_columns_that_training_reads(name: str, try_all: Run) -> None:
    try_all((name, TRAINED[name], SHARD), DATASET, ("train",))


@pytest.mark.parametrize("name", COUNTED)
def test_tables_of_games(name: str, try_all: Run) -> None:
    try_all((name, COUNTED[name], GAMES), DATASET, ("join", "verify", "audit"))


@pytest.mark.parametrize("name", [*ROWS, *TRAINED])
def test_verify_and_join_bear_any_rows(
    name: str, spoilt: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (ROWS | TRAINED)[name](spoilt)
    for command in ("verify", "join"):
        refused(spoilt, command, DATASET, SHARD, capsys, monkeypatch)


@pytest.mark.parametrize("case", cases(SETS), ids=ids)
def test_a_training_set(case: Case, try_all: Run) -> None:
    try_all(case, SET, ("train", "report", "audit"))


@pytest.mark.parametrize("name", ["label 4096", "half a shard"])
def test_rows_of_a_training_sets_dataset(
    name: str, spoilt: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ROWS[name](spoilt)
    rejoined(spoilt)
    for command in ("train", "audit"):
        assert refused(spoilt, command, SET, SHARD, capsys, monkeypatch)


@pytest.mark.parametrize("case", cases(CARDS), ids=ids)
def test_a_card(
    case: Case, spoilt: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    case[1](spoilt)
    assert refused(spoilt, "report", DATASET, "net", capsys, monkeypatch)
    refused(spoilt, "finetune", DATASET, "net", capsys, monkeypatch)


def test_weights_that_are_no_numbers_are_not_measured(
    spoilt: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = next((spoilt / NET).glob("weights-*"))
    weights = load_file(path)
    for name, tensor in weights.items():
        if tensor.is_floating_point():
            weights[name] = torch.full_like(tensor, 3e38)  # finite, and what it leads to is not
    save_file(weights, path)
    card = read_card(spoilt / NET)
    card["files"]["weights"]["sha256"] = hashlib.sha256(path.read_bytes()).hexdigest()
    publish_json(spoilt / NET, "checkpoint.json", card)
    assert refused(spoilt, "report", DATASET, "network", capsys, monkeypatch)


@pytest.mark.parametrize(
    "name",
    ["label 4096", "every bit", "half a shard", "visits are no structs", "half a table of games"],
)
def test_dagsters_pages_say_it_too(
    name: str, spoilt: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page of positions shows the refusal where its pictures would be; nothing is drawn of what
    cannot be."""
    (ROWS | COUNTED)[name](spoilt)
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


def test_what_nobody_spoilt_is_taken_by_all(
    spoilt: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for command in CONSUMERS:
        assert not refused(spoilt, command, DATASET, "", capsys, monkeypatch), command
