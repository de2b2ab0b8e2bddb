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

Damage = Callable[[Path], object]
"""Damages a file of the workplace in a folder."""
Change = Callable[[pa.Table], pa.Table]
MISSING = object()
DATASET, OTHER, SET, NET = "positions/2014.05", "positions/2014.06", "sets/all", "net"
SHARD = f"{DATASET}/train-00000-0.parquet"

INVALID_JSON: dict[str, bytes] = {
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
"""Contents that are refused in place of a JSON object."""


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


def copy_workplace(place: Path, to: Path) -> Path:
    """Copy the workplace without its dumps."""
    return shutil.copytree(place, to, ignore=shutil.ignore_patterns("dumps"))


def edit_json(path: Path, change: Callable[[Any], object]) -> None:
    """Change the content of a JSON file in place."""
    content = json.loads(path.read_bytes())
    change(content)
    path.write_text(json.dumps(content))


def update_hashes(directory: Path) -> None:
    """Write the sizes and hashes of changed files to the manifest, as an attacker would."""

    def update(manifest: Any) -> None:
        for entry in manifest["files"]:
            data = (directory / entry["name"]).read_bytes()
            entry |= {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}

    edit_json(directory / "manifest.json", update)


def update_training_set(folder: Path) -> None:
    """Write the hashes of changed manifests to the training set, as an attacker would."""

    def update(content: Any) -> None:
        for entry in content["datasets"]:
            manifest = folder / SET / entry["path"] / "manifest.json"
            entry["manifest_sha256"] = hashlib.sha256(manifest.read_bytes()).hexdigest()

    edit_json(folder / SET / "training_set.json", update)


# ---------------------------------------------------------------- damage to files


def overwrite(name: str, data: bytes) -> Damage:
    """Replace the content of a file."""
    return lambda folder: (folder / name).write_bytes(data)


def truncate(name: str, share: float) -> Damage:
    """Keep the first `share` of a file's bytes, with a matching manifest."""

    def damage(folder: Path) -> None:
        data = (folder / name).read_bytes()
        (folder / name).write_bytes(data[: int(len(data) * share)])
        update_hashes(folder / DATASET)

    return damage


def replace_by_folder(name: str) -> Damage:
    """Replace a file by an empty folder."""

    def damage(folder: Path) -> None:
        (folder / name).unlink()
        (folder / name).mkdir()

    return damage


def delete(name: str) -> Damage:
    """Delete a file."""
    return lambda folder: (folder / name).unlink()


def set_field(name: str, *keys: str | int, value: Any) -> Damage:
    """Set a value of a JSON file; a function gets the old value, and MISSING deletes it."""

    def change(content: Any) -> None:
        *parents, key = keys
        for parent in parents:
            content = content[parent]
        if value is MISSING:
            del content[key]
        else:
            content[key] = value(content[key]) if callable(value) else value

    return lambda folder: edit_json(folder / name, change)


# ---------------------------------------------------------------- damage to tables


def change_table(name: str, change: Change, **writer: Any) -> Damage:
    """Change the table of a Parquet file, with a matching manifest.

    The file is written as a shard or, with options for pyarrow's writer, by pyarrow.
    """

    def damage(folder: Path) -> None:
        path = folder / name
        table = change(pq.read_table(path))
        if writer or name.endswith("games.parquet"):
            pq.write_table(table, path, **writer)
        else:
            write_rows(table, path)

        def update(manifest: Any) -> None:
            (entry,) = (entry for entry in manifest["files"] if entry["name"] == path.name)
            for counted in (entry["split"], "total") if entry["split"] else ():
                manifest["positions"][counted] += len(table) - entry["rows"]
            entry["rows"] = len(table)

        edit_json(path.parent / "manifest.json", update)
        update_hashes(path.parent)

    return damage


def set_cell(name: str, value: Any, row: int = 3) -> Change:
    """Return a function that sets one value of a column."""

    def change(table: pa.Table) -> pa.Table:
        at = table.schema.get_field_index(name)
        values, field = table[name].to_pylist(), table.schema.field(at)
        values[row] = value
        return table.set_column(at, field, pa.array(values, field.type))

    return change


def set_type(name: str, kind: pa.DataType, value: Callable[[int], Any] = lambda row: 1) -> Change:
    """Return a function that replaces a column by one of another type, with values by row."""

    def change(table: pa.Table) -> pa.Table:
        at = table.schema.get_field_index(name)
        values = pa.array([value(row) for row in range(len(table))], kind)
        return table.set_column(at, pa.field(name, kind, table.schema.field(at).nullable), values)

    return change


def set_illegal_label(table: pa.Table) -> pa.Table:
    """Set the label of row 3 to a move that is not legal."""
    planes = read_planes(table)[3]
    legal = (int(planes[13 + label // 64]) >> (label % 64) & 1 for label in range(4096))
    label = next(label for label, is_legal in enumerate(legal) if not is_legal)
    return set_cell("label", label)(table)
