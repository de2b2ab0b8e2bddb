"""A small workplace (two datasets, a training set, a checkpoint), and functions to damage it."""

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from model.checkpoint import save
from model.network.network import build
from model.network.preset import preset_to_dict
from pipeline.dataset.files.shards import write_rows
from pipeline.dataset.join import JoinConfig, join
from tests.model.synthetic import TINY
from tests.pipeline.datasets import read_planes
from tests.pipeline.months import month

Spoil = Callable[[Path], None]
GONE = object()
DATASET, OTHER, SET, NET = "positions/2014.05", "positions/2014.06", "sets/all", "net"
SHARD = f"{DATASET}/train-00000-0.parquet"

NO_JSON: dict[str, bytes] = {
    "empty": b"",
    "half an object": b'{"format_version": 2, ',
    "a list": b"[]",
    "null": b"null",
    "NaN": b'{"format_version": NaN}',
    "infinity": b'{"format_version": 1e999}',
    "lists in lists": b"[" * 100_000,
    "objects in objects": b'{"a":' * 300 + b"1" + b"}" * 300,
    "more digits than Python reads": b'{"format_version": ' + b"9" * 5000 + b"}",
    "a key twice": b'{"format_version": 2, "format_version": 2}',
    "UTF-16": '{"format_version": 2}'.encode("utf-16"),
    "half a surrogate pair": b'{"name": "\\ud800"}',
    "a picture": b"\x89PNG\r\n\x1a\n" + bytes(100),
}
"""Bytes that are no JSON object of ours."""


def workplace(folder: Path) -> Path:
    """Make the workplace."""
    folder.mkdir()
    month(folder, "2014.05", list(range(14)))
    month(folder, "2014.06", list(range(14, 26)))
    join([folder / DATASET, folder / OTHER], folder / SET, JoinConfig(hold_out="none"))
    (folder / NET).mkdir()
    counts = {"parameters": 9, "step": 7, "positions": 70, "seconds": 1.5, "finished": True}
    more = {"metrics": {"loss": 1.5}, "config": {}, "data": {"datasets": [{"name": "a"}]}}
    card = {"preset": preset_to_dict(TINY)} | counts | more
    save(folder / NET, card, {"weights": build(TINY, 3).state_dict()})
    return folder


def written(name: str, data: bytes) -> Spoil:
    """Put bytes in the place of a file."""
    return lambda folder: (folder / name).write_bytes(data) and None  # type: ignore[func-returns-value]


def cut(name: str, share: float) -> Spoil:
    """Leave the beginning of a file, and seal the dataset."""

    def spoil(folder: Path) -> None:
        data = (folder / name).read_bytes()
        (folder / name).write_bytes(data[: int(len(data) * share)])
        seal(folder / DATASET)

    return spoil


def folder_instead(name: str) -> Spoil:
    """Put a folder in the place of a file."""

    def spoil(folder: Path) -> None:
        (folder / name).unlink()
        (folder / name).mkdir()

    return spoil


def gone(name: str) -> Spoil:
    """Take a file away."""
    return lambda folder: (folder / name).unlink()


def edited(name: str, *way: str | int, value: Any) -> Spoil:
    """Set a value of a JSON file; a function is given the old one, and GONE deletes it."""

    def spoil(folder: Path) -> None:
        whole = json.loads((folder / name).read_bytes())
        place = whole
        for key in way[:-1]:
            place = place[key]
        if value is GONE:
            del place[way[-1]]
        else:
            place[way[-1]] = value(place[way[-1]]) if callable(value) else value
        (folder / name).write_text(json.dumps(whole))

    return spoil


def seal(directory: Path) -> None:
    """Make a manifest agree with its files: what a stranger who spoils a file would do too."""
    path = directory / "manifest.json"
    manifest = json.loads(path.read_bytes())
    for entry in manifest["files"]:
        data = (directory / entry["name"]).read_bytes()
        entry |= {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    path.write_text(json.dumps(manifest))


def stored(name: str, change: Callable[[pa.Table], pa.Table], **writer: Any) -> Spoil:
    """Write a Parquet file again with another table, as pyarrow does it, and seal the dataset."""

    def spoil(folder: Path) -> None:
        path = folder / name
        table = change(pq.read_table(path))
        if writer or name.endswith("games.parquet"):
            pq.write_table(table, path, **writer)
        else:
            write_rows(table, path)
        directory = path.parent
        manifest = json.loads((directory / "manifest.json").read_bytes())
        for entry in manifest["files"]:
            if entry["name"] == path.name:
                split, more = entry["split"], len(table) - entry["rows"]
                entry["rows"] = len(table)
                for counted in (split, "total") if split else ():
                    manifest["positions"][counted] += more
        (directory / "manifest.json").write_text(json.dumps(manifest))
        seal(directory)

    return spoil


def column(name: str, value: Any, row: int = 3) -> Callable[[pa.Table], pa.Table]:
    """Return a function that sets one value of a column."""

    def change(table: pa.Table) -> pa.Table:
        at = table.schema.get_field_index(name)
        values, field = table[name].to_pylist(), table.schema.field(at)
        values[row] = value
        return table.set_column(at, field, pa.array(values, field.type))

    return change


def retyped(
    name: str, kind: pa.DataType, values: Callable[[int], Any] = lambda row: 1
) -> Callable[[pa.Table], pa.Table]:
    """Return a function that gives a column another type."""

    def change(table: pa.Table) -> pa.Table:
        at = table.schema.get_field_index(name)
        made = pa.array([values(row) for row in range(len(table))], kind)
        return table.set_column(at, pa.field(name, kind, table.schema.field(at).nullable), made)

    return change


def illegal_label(table: pa.Table) -> pa.Table:
    """Return row 3 a label that is none of its legal moves."""
    planes = read_planes(table)[3]
    legal = (int(planes[13 + label // 64]) >> (label % 64) & 1 for label in range(4096))
    label = next(label for label, is_legal in enumerate(legal) if not is_legal)
    return column("label", label)(table)


def copied(place: Path, to: Path) -> Path:
    """Copy the workplace, its dumps left out."""
    return shutil.copytree(place, to, ignore=shutil.ignore_patterns("dumps"))


def rejoined(folder: Path) -> None:
    """Tell the training set the hash of a manifest that was changed, as a stranger would."""
    page = json.loads((folder / SET / "training_set.json").read_bytes())
    for entry in page["datasets"]:
        manifest = folder / SET / entry["path"] / "manifest.json"
        entry["manifest_sha256"] = hashlib.sha256(manifest.read_bytes()).hexdigest()
    (folder / SET / "training_set.json").write_text(json.dumps(page))
